"""Lines as a figure, through matplotlib's object interface: no global state, no display, safe in any thread or worker.

A plot keeps its numbers, so that `results.json` holds what the picture shows and the picture can be drawn again.
Notebooks show it by itself; `save` writes a PNG.

Relations  `records` draw themselves with it; `report.plots` adds what only reports draw.
"""

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.errors import extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_INCHES = (7.0, 3.6)
DOTS_PER_INCH = 144
# Okabe & Ito's colours, told apart by colour-blind readers; each line also has a style of its own for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Series:
    """A named line: y over x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r} has {len(self.x)} x values but {len(self.y)} y values")


class Picture(ABC):
    """A figure that keeps its numbers: what `plot()` of a record gives."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The numbers for JSON, which has no NaN: a gap is null."""

    @abstractmethod
    def png(self) -> bytes: ...

    def save(self, file: Path | str) -> None:
        """Write the PNG."""
        Path(file).write_bytes(self.png())

    def _repr_png_(self) -> bytes:
        """What notebooks show."""
        return self.png()


@dataclass(frozen=True)
class LinePlot(Picture):
    """Lines over one x axis. Values that are not finite leave a gap."""

    series: Sequence[Series]
    x_label: str
    y_label: str
    log_x: bool = False  # equal ratios at equal distances
    log_y: bool = False

    def record(self) -> dict[str, Any]:
        series = [
            {"name": line.name, "x": list(line.x), "y": [y if math.isfinite(y) else None for y in line.y]}
            for line in self.series
        ]
        scales = {"log_x": self.log_x} | ({"log_y": True} if self.log_y else {})
        return {"x_label": self.x_label, "y_label": self.y_label, **scales, "series": series}

    def png(self) -> bytes:
        with extra("report"):
            from matplotlib.figure import Figure

        figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(self.series):
            y = [value if math.isfinite(value) else math.nan for value in line.y]
            axes.plot(
                line.x,
                y,
                label=line.name,
                color=COLOURS[index % len(COLOURS)],
                linestyle=STYLES[index % len(STYLES)],
                marker="o" if len(line.x) <= 20 else None,  # a line of one point is invisible without its marker
                markersize=4,
            )
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_yscale("log" if self.log_y else "linear")
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if self.series:
            axes.legend(frameon=False)
        return png_of(figure)


def png_of(figure: "Figure") -> bytes:
    """The same bytes for the same numbers: no date and no version inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
