"""What a generalization grid found: cells by setting, means of each setting, heat maps and a table.

    settings.in_domain.accuracy     mean balanced accuracy over the cells of a setting (`.lower`: mean of the lower ends
                                    of the intervals); also cross_architecture, cross_corpus, unseen
    unions.containing, .lacking     the same over training sets of several corpora, with and without the test corpus
    singles.containing, .lacking    over training sets of one corpus, which is or is not the test corpus
    generators.NAME                 over the cells of a test generator
    energies.NAME                   over the cells of an energy; with all of the above for this energy alone, and
                                    `.by_context`, by length of the given context

Cells that were left out (an encoder is not judged on a corpus that it was pretrained on) are listed with the reason and
count nowhere. All of it is JSON, so that a kept result can be shown again without the models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energylm.config.grid import SETTINGS
from energylm.report.plots import HeatMap
from energylm.report.report import Numbers, Plot, Section
from energylm.tables import Table

CONVENTION = (
    "balanced accuracy at energy 0, 0.5 at chance; lower and upper end of a 95 % bootstrap interval over texts; TPR: "
    "machine texts found where 1 % or 5 % of real texts are flagged"
)
_COLUMNS = (
    "energy",
    "trained on",
    "tested on",
    "setting",
    "accuracy",
    "lower",
    "upper",
    "AUROC",
    "TPR at 1 %",
    "TPR at 5 %",
    "texts",
    "note",
)


@dataclass(frozen=True)
class GridCell:
    """A cell's place, and what was found there: `DiscriminationRun.to_json()`, or nothing and a note."""

    energy: str
    training: str
    test: str
    setting: str
    training_corpora: Sequence[str]
    test_generator: str
    test_corpus: str
    note: str
    found: Mapping[str, Any] | None

    def record(self) -> dict[str, Any]:
        found = self.found or {}
        note = self.note or (f"{found['overlapping']} test texts left out: seen" if found.get("overlapping") else "")
        values = ("accuracy", "lower", "upper", "auroc", "tpr_at_1", "tpr_at_5", "texts")
        cells = [self.energy, self.training, self.test, self.setting, *(found.get(value) for value in values), note]
        return dict(zip(_COLUMNS, cells, strict=True))


def summarise(cells: Sequence[GridCell]) -> dict[str, Any]:
    """The grid as JSON: records, means by setting, and how unions fare."""
    judged = [cell for cell in cells if cell.found is not None]
    of_energies = {
        name: [cell for cell in judged if cell.energy == name] for name in dict.fromkeys(cell.energy for cell in judged)
    }
    return {
        "records": [cell.record() for cell in cells],
        **_groups(judged),
        "energies": {name: _means(of) | _groups(of) for name, of in of_energies.items()},
        "convention": CONVENTION,
    }


def grid_sections(found: Mapping[str, Any], *, title: str) -> list[Section]:
    """A heat map for each energy, the settings, and every cell."""
    records = found["records"]
    energies = list(dict.fromkeys(record["energy"] for record in records))
    sections: list[Section] = [
        Plot(f"{title}: {energy}", heat_map, alt=_alt(energy, heat_map))
        for energy in energies
        if (heat_map := _heat_map([record for record in records if record["energy"] == energy])).is_worth_drawing
    ]
    rows = [
        [name.replace("_", "-"), of["cells"], of["accuracy"], of["auroc"]] for name, of in found["settings"].items()
    ]
    sections.append(
        Numbers(
            f"{title}: settings",
            Table(["setting", "cells", "mean accuracy", "mean AUROC"], rows, convention=found["convention"]),
        )
    )
    cells = [[record[column] for column in _COLUMNS] for record in records]
    sections.append(Numbers(f"{title}: cells", Table(_COLUMNS, cells, convention=found["convention"])))
    return sections


def _groups(cells: Sequence[GridCell]) -> dict[str, Any]:
    """Means by setting, by what the training set is made of, and by test generator."""
    generators = dict.fromkeys(cell.test_generator for cell in cells)
    return {
        "settings": {
            setting.replace("-", "_"): _means([cell for cell in cells if cell.setting == setting])
            for setting in SETTINGS
        },
        "unions": _by_containing([cell for cell in cells if len(cell.training_corpora) > 1]),
        "singles": _by_containing([cell for cell in cells if len(cell.training_corpora) == 1]),
        "generators": {name: _means([cell for cell in cells if cell.test_generator == name]) for name in generators},
    }


def _by_containing(cells: Sequence[GridCell]) -> dict[str, Any]:
    return {
        "containing": _means([cell for cell in cells if cell.test_corpus in cell.training_corpora]),
        "lacking": _means([cell for cell in cells if cell.test_corpus not in cell.training_corpora]),
    }


def _means(cells: Sequence[GridCell]) -> dict[str, Any]:
    """Of accuracy, the lower ends of its intervals, and AUROC; where all cells have them, also of the accuracies by
    length of the given context."""
    found = [cell.found for cell in cells if cell.found is not None]
    means: dict[str, Any] = {"cells": len(found)} | {
        name: sum(one[name] for one in found) / len(found) if found else None for name in ("accuracy", "lower", "auroc")
    }
    lengths = [one["by_context"]["context_tokens"] for one in found if "by_context" in one]
    if lengths and len(lengths) == len(found) and all(one == lengths[0] for one in lengths):
        columns = zip(*(one["by_context"]["accuracy"] for one in found), strict=True)
        accuracies = [sum(column) / len(found) for column in columns]
        means["by_context"] = {"context_tokens": lengths[0], "accuracy": accuracies}
    return means


def _heat_map(records: Sequence[Mapping[str, Any]]) -> HeatMap:
    rows = list(dict.fromkeys(record["trained on"] for record in records))
    columns = list(dict.fromkeys(record["tested on"] for record in records))
    values: list[list[float | None]] = [[None] * len(columns) for _ in rows]
    marks = [[""] * len(columns) for _ in rows]
    for record in records:
        row, column = rows.index(record["trained on"]), columns.index(record["tested on"])
        values[row][column] = record["accuracy"]
        marks[row][column] = record["setting"] if record["accuracy"] is not None else "not judged"
    return HeatMap(
        rows, columns, values, marks=marks, x_label="tested on", y_label="trained on", lowest=0.5, highest=1.0
    )


def _alt(energy: str, heat_map: HeatMap) -> str:
    told = [
        f"trained on {row}: " + ", ".join(f"{column} {value:.1%}" for column, value in pairs if value is not None)
        for row, of in zip(heat_map.rows, heat_map.values, strict=True)
        for pairs in [list(zip(heat_map.columns, of, strict=True))]
    ]
    return f"Balanced accuracy of {energy}. " + "; ".join(told) + "."
