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
from dataclasses import dataclass, field
from typing import Any

from energylm.config.texts import SETTINGS, CellConfig
from energylm.errors import ConfigError
from energylm.estimators.discrimination import Discrimination
from energylm.records import Record
from energylm.report.plots import HeatMap
from energylm.report.report import Numbers, Plot, Section
from energylm.tables import Table

CONVENTION = (
    "balanced accuracy at energy 0, 0.5 at chance; lower and upper end of a 95 % bootstrap interval over texts; TPR: "
    "machine texts found where 1 % or 5 % of real texts are flagged"
)
_WHERE = ("energy", "trained on", "tested on", "setting")
_COLUMNS = (*_WHERE, "accuracy", "lower", "upper", "AUROC", "TPR at 1 %", "TPR at 5 %", "texts", "note")


@dataclass(frozen=True)
class GridCell:
    """Where a cell stands, and what was measured there, or nothing where it was left out."""

    stands: CellConfig
    measured: Discrimination | None = None
    by_context: Mapping[int, Discrimination] = field(default_factory=dict)  # by tokens that are given, where these vary
    overlapping: int = 0  # test texts left out, since the energy has learnt from them

    def record(self) -> dict[str, Any]:
        stands, measured = self.stands, self.measured
        numbers: list[Any] = [None] * 7
        if measured is not None:
            accuracy, rates = measured.balanced_accuracy, (measured.tpr_at_1, measured.tpr_at_5)
            numbers = [accuracy.value, accuracy.lower, accuracy.upper, measured.auroc.value]
            numbers += [*(rate and rate.value for rate in rates), measured.real_groups]
        note = stands.note or (f"{self.overlapping} test texts left out: seen" if self.overlapping else "")
        cells = [stands.energy, stands.training, stands.test, stands.setting, *numbers, note]
        return dict(zip(_COLUMNS, cells, strict=True))


@dataclass(frozen=True)
class GridSummary(Record):
    """The grid as JSON: a record a cell, means by setting, and how unions fare."""

    records: list[dict[str, Any]]
    settings: dict[str, Any]
    unions: dict[str, Any]
    singles: dict[str, Any]
    generators: dict[str, Any]
    energies: dict[str, Any]
    convention: str = CONVENTION

    @property
    def table(self) -> Table:
        return _cells(self.records, self.convention)

    def plot(self, energy: str | None = None) -> HeatMap:
        """Accuracies of an energy, of the first where none is named, by what it was trained and tested on."""
        names = list(dict.fromkeys(record["energy"] for record in self.records))
        if not names or energy not in (None, *names):
            raise ConfigError(f"there is no energy {energy!r} in this grid; it has {', '.join(names) or 'none'}")
        return _heat_map([record for record in self.records if record["energy"] == (energy or names[0])])


def summarise(cells: Sequence[GridCell]) -> GridSummary:
    judged = [cell for cell in cells if cell.measured is not None]
    of_energies = {
        name: [cell for cell in judged if cell.stands.energy == name]
        for name in dict.fromkeys(cell.stands.energy for cell in judged)
    }
    energies = {name: _means(of) | _groups(of) for name, of in of_energies.items()}
    return GridSummary(records=[cell.record() for cell in cells], **_groups(judged), energies=energies)


def grid_sections(grid: Mapping[str, Any], *, title: str) -> list[Section]:
    """A heat map for each energy, the settings, and every cell."""
    records = grid["records"]
    energies = list(dict.fromkeys(record["energy"] for record in records))
    sections: list[Section] = [
        Plot(f"{title}: {energy}", heat_map, alt=_alt(energy, heat_map))
        for energy in energies
        if (heat_map := _heat_map([record for record in records if record["energy"] == energy])).is_worth_drawing
    ]
    rows = [[name.replace("_", "-"), of["cells"], of["accuracy"], of["auroc"]] for name, of in grid["settings"].items()]
    means = Table(["setting", "cells", "mean accuracy", "mean AUROC"], rows, convention=grid["convention"])
    cells = Numbers(f"{title}: cells", _cells(records, grid["convention"]))
    return [*sections, Numbers(f"{title}: settings", means), cells]


def _cells(records: Sequence[Mapping[str, Any]], convention: str) -> Table:
    return Table(_COLUMNS, [[record[column] for column in _COLUMNS] for record in records], convention=convention)


def _groups(cells: Sequence[GridCell]) -> dict[str, Any]:
    """Means by setting, by what the training set is made of, and by test generator."""
    generators = dict.fromkeys(cell.stands.test_generator for cell in cells)
    return {
        "settings": {
            setting.replace("-", "_"): _means([cell for cell in cells if cell.stands.setting == setting])
            for setting in SETTINGS
        },
        "unions": _by_containing([cell for cell in cells if len(cell.stands.training_corpora) > 1]),
        "singles": _by_containing([cell for cell in cells if len(cell.stands.training_corpora) == 1]),
        "generators": {
            name: _means([cell for cell in cells if cell.stands.test_generator == name]) for name in generators
        },
    }


def _by_containing(cells: Sequence[GridCell]) -> dict[str, Any]:
    return {
        "containing": _means([cell for cell in cells if cell.stands.test_corpus in cell.stands.training_corpora]),
        "lacking": _means([cell for cell in cells if cell.stands.test_corpus not in cell.stands.training_corpora]),
    }


def _means(cells: Sequence[GridCell]) -> dict[str, Any]:
    """Of accuracy, the lower ends of its intervals, and AUROC; where all cells have them, also of the accuracies by
    length of the given context."""
    measured = [(cell.measured, cell.by_context) for cell in cells if cell.measured is not None]
    means: dict[str, Any] = {
        "cells": len(measured),
        "accuracy": _mean([of.balanced_accuracy.value for of, _ in measured]),
        "lower": _mean([of.balanced_accuracy.lower for of, _ in measured]),
        "auroc": _mean([of.auroc.value for of, _ in measured]),
    }
    lengths = [list(by_context) for _, by_context in measured]
    if lengths and lengths[0] and all(of == lengths[0] for of in lengths):
        of_lengths = ([by_context[length] for _, by_context in measured] for length in lengths[0])
        accuracies = [_mean([of.balanced_accuracy.value for of in judged]) for judged in of_lengths]
        means["by_context"] = {"context_tokens": lengths[0], "accuracy": accuracies}
    return means


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _heat_map(records: Sequence[Mapping[str, Any]]) -> HeatMap:
    rows = list(dict.fromkeys(record["trained on"] for record in records))
    columns = list(dict.fromkeys(record["tested on"] for record in records))
    values: list[list[float | None]] = [[None] * len(columns) for _ in rows]
    marks = [[""] * len(columns) for _ in rows]
    for record in records:
        row, column = rows.index(record["trained on"]), columns.index(record["tested on"])
        values[row][column] = record["accuracy"]
        marks[row][column] = record["setting"] if record["accuracy"] is not None else "not judged"
    labels = {"x_label": "tested on", "y_label": "trained on"}
    return HeatMap(rows, columns, values, marks, **labels, lowest=0.5, highest=1.0)


def _alt(energy: str, heat_map: HeatMap) -> str:
    told = [
        f"trained on {row}: " + ", ".join(f"{column} {value:.1%}" for column, value in pairs if value is not None)
        for row, of in zip(heat_map.rows, heat_map.values, strict=True)
        for pairs in [list(zip(heat_map.columns, of, strict=True))]
    ]
    return f"Balanced accuracy of {energy}. " + "; ".join(told) + "."
