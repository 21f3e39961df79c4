"""Figures that only reports draw; lines are `energylm.plots`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from energylm.errors import extra
from energylm.plots import COLOURS, LinePlot, Picture, Series, png_of

__all__ = ["ForestPlot", "ForestRow", "HeatMap", "LinePlot", "Series", "histogram_plot", "loss_plot"]


@dataclass(frozen=True)
class HeatMap(Picture):
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
        with extra("report"):
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
        return png_of(figure)


@dataclass(frozen=True)
class ForestRow:
    """A relative difference with its interval, beside the one that it is compared with."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    reference: float | None = None


@dataclass(frozen=True)
class ForestPlot:
    """One row for each effect around the line of no difference; far ones come nearer, by a logarithm beyond 10 %."""

    effects: Sequence[ForestRow]
    x_label: str

    def png(self) -> bytes:
        with extra("report"):
            from matplotlib.figure import Figure

        figure = Figure(figsize=(11.0, 1.2 + 0.17 * len(self.effects)), layout="constrained")
        axes = figure.add_subplot()
        for row, effect in enumerate(self.effects):
            colour = COLOURS[0] if effect.value > 0 else COLOURS[1]
            if effect.interval is not None:
                axes.plot(effect.interval, (row, row), color=colour, linewidth=1.5)
            axes.plot(effect.value, row, marker="o", markersize=4, color=colour, linestyle="none")
            if effect.reference is not None:
                axes.plot(effect.reference, row, marker="|", markersize=7, color="black", linestyle="none")
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_yticks(range(len(self.effects)), [_shortened(effect.name) for effect in self.effects], size=6)
        axes.set_ylim(len(self.effects), -1)
        axes.set_xlabel(f"{self.x_label} (dot: here, blue as published; stroke: published)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, axis="x")
        return png_of(figure)


def _shortened(name: str, longest: int = 100) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


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
