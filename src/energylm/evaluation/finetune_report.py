"""The page about a fine-tuned encoder: medians over seeds beside their spread, every seed, the loss over steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from energylm.estimators.seed_median import SeedMedian
from energylm.tables import Cell, Table
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text

NAMES = {
    "mcc": "Matthews correlation",
    "accuracy": "accuracy",
    "f1": "F1",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "exact_match": "exact match",
    "best_exact_match": "exact match, best threshold",
    "best_f1": "F1, best threshold",
}


def median_table(medians: Mapping[str, SeedMedian], baseline: Mapping[str, float], *, convention: str) -> Table:
    """The first row is the paper's metric."""
    rows: list[list[Cell]] = [
        [NAMES[name], one.value, one.lowest, one.highest, one.deviation, baseline.get(name)]
        for name, one in medians.items()
    ]
    return Table(["metric", "median", "lowest", "highest", "deviation", "ignoring the text"], rows, convention)


def finetune_sections(
    table: Table,
    seeds: Sequence[Mapping[str, Any]],
    journals: Mapping[int, Sequence[Mapping[str, Any]]],
    *,
    about: str,
) -> list[Section]:
    """`seeds` are the outcomes by seed: `seed`, `metrics`, `steps`, `seconds`, `parts`."""
    names = list(seeds[0]["metrics"])
    columns = ["seed", *(NAMES[name] for name in names), "steps", "seconds"]
    rows = [[one["seed"], *(one["metrics"][name] for name in names), one["steps"], one["seconds"]] for one in seeds]
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Result", table),
        Numbers("Seeds", Table(columns, rows, convention="the same examples, another head, data order and dropout")),
    ]
    parts = [
        [one["seed"], part, *(metrics[name] for name in ("exact_match", "f1"))]
        for one in seeds
        for part, metrics in one["parts"].items()
    ]
    if parts:
        sections.append(Numbers("Questions by kind", Table(["seed", "questions", "exact match", "F1"], parts)))
    lines = [
        Series(f"seed {seed}", [line["step"] for line in journal], [line["loss"] for line in journal])
        for seed, journal in journals.items()
        if journal
    ]
    if lines:
        plot = LinePlot(lines, x_label="step", y_label="training loss")
        sections.append(Plot("Training", plot, alt="The training loss over steps, a line for each seed."))
    return sections
