"""Figures through matplotlib's object interface: no global state, no display, safe in any thread or worker.

A plot keeps its numbers, so that `results.json` holds what the picture shows and the picture can be drawn again.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class LinePlot:
    """Lines over one x axis. Values that are not finite leave a gap."""

    series: Sequence[Series]
    x_label: str
    y_label: str
    log_x: bool = False  # equal ratios at equal distances

    def record(self) -> dict[str, Any]:
        """The numbers for JSON, which has no NaN: a gap is null."""
        series = [
            {"name": line.name, "x": list(line.x), "y": [y if math.isfinite(y) else None for y in line.y]}
            for line in self.series
        ]
        return {"x_label": self.x_label, "y_label": self.y_label, "log_x": self.log_x, "series": series}

    def png(self) -> bytes:
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
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if self.series:
            axes.legend(frameon=False)
        return _png(figure)


@dataclass(frozen=True)
class HeatMap:
    """A matrix as colours with its numbers written in; `values[row][column]`, None where there is none."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    marks: Sequence[Sequence[str]]  # a word under each number
    x_label: str
    y_label: str
    lowest: float  # of the scale of colours
    highest: float

    def __post_init__(self) -> None:
        for name, table in (("values", self.values), ("marks", self.marks)):
            if [len(row) for row in table] != [len(self.columns)] * len(self.rows):
                raise ValueError(f"{name} of a heat map must be {len(self.rows)} rows of {len(self.columns)} columns")

    @property
    def is_worth_drawing(self) -> bool:
        """Whether it has more than one number."""
        return sum(value is not None for row in self.values for value in row) > 1

    def record(self) -> dict[str, Any]:
        axes: dict[str, Any] = {"x_label": self.x_label, "y_label": self.y_label}
        axes |= {"rows": list(self.rows), "columns": list(self.columns)}
        return axes | {"values": [list(row) for row in self.values], "marks": [list(row) for row in self.marks]}

    def png(self) -> bytes:
        from matplotlib.figure import Figure

        width, height = max(4.0, 1.3 * len(self.columns) + 2.4), max(2.4, 0.62 * len(self.rows) + 1.3)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        numbers = [[math.nan if value is None else value for value in row] for row in self.values]
        image = axes.imshow(numbers, cmap="viridis", vmin=self.lowest, vmax=self.highest, aspect="auto")
        for row, of in enumerate(numbers):
            for column, value in enumerate(of):
                mark = self.marks[row][column]
                written = mark if math.isnan(value) else f"{value:.3f}\n{mark}"
                dark = value < (self.lowest + self.highest) / 2  # viridis is dark at its low end; never where NaN
                axes.text(column, row, written, ha="center", va="center", size=7, color="white" if dark else "black")
        axes.set_xticks(range(len(self.columns)), self.columns, rotation=20, ha="right")
        axes.set_yticks(range(len(self.rows)), self.rows)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        figure.colorbar(image)
        return _png(figure)


def _png(figure: "Figure") -> bytes:
    """The same bytes for the same numbers: no date and no version inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def loss_plot(train: Sequence[tuple[int, float]], validation: Sequence[tuple[int, float]], *, unit: str) -> LinePlot:
    """Training and validation loss over steps, from (step, loss) pairs; `unit` says what a loss is of: a language
    model's of a token, an energy's of a context."""
    series = [
        Series(name, [step for step, _ in points], [loss for _, loss in points])
        for name, points in (("training", train), ("validation", validation))
        if points
    ]
    return LinePlot(series, x_label="step", y_label=f"loss ({unit})")


def histogram_plot(edges: Sequence[float], counts: Mapping[str, Sequence[int]], *, x_label: str) -> LinePlot:
    """Outlines of histograms over common bins, each of area one, so that samples of any size can be compared."""
    series = []
    for name, of_bins in counts.items():
        total = max(sum(of_bins), 1)
        heights = [count / total / (end - start) for count, (start, end) in zip(of_bins, pairwise(edges), strict=True)]
        x = [edge for edge in edges for _ in range(2)]
        series.append(Series(name, x, [0.0, *(height for height in heights for _ in range(2)), 0.0]))
    return LinePlot(series, x_label=x_label, y_label="density")
