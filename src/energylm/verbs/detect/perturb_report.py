"""What one change at each position does to an energy and to a language model's negative log-likelihood.

    ΔE_p = mean over texts of E(text changed at p) − E(text)              likewise ΔNLL_p, in nats of the whole text

Every text is compared with itself, so what texts differ in cancels; errors are standard errors over texts. The *ends*
are the tokens that negatives had generated in training, the *middle* what was always real.

Relations  Bakhtin et al. 2019, §5.6 and fig. 2; `numerics.perturbations` makes the copies.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table


@dataclass(frozen=True)
class PositionEffect(Record):
    """Against the unchanged texts; means over texts and positions, errors over texts."""

    unchanged: float  # mean of the real texts
    mean: float
    standard_error: float
    raised: float  # fraction of texts whose mean over positions went up
    ends: float  # mean absolute change at the ends
    middle: float
    by_position: tuple[float, ...]  # mean over texts
    error_by_position: tuple[float, ...]

    computed = ("level_by_position",)

    @property
    def level_by_position(self) -> list[float]:
        """Mean of the changed texts, by the position of the change."""
        return [self.unchanged + change for change in self.by_position]


@dataclass(frozen=True)
class Effect(Record):
    """Of one kind of perturbation; `words` says what was put where."""

    words: str
    energy: PositionEffect
    nll: PositionEffect

    computed = ("positions",)

    @property
    def positions(self) -> list[int]:
        """Counted from 1."""
        return list(range(1, len(self.energy.by_position) + 1))


@dataclass(frozen=True)
class Replacement(Record):
    """Whole texts in place of the real ones: random tokens, or the same tokens in random order."""

    words: str
    energy: float  # mean over texts
    energy_change: float  # against the real texts
    energy_error: float
    below_real: float  # fraction of them with a lower energy than the real text they replace
    nll: float
    nll_change: float
    nll_error: float


@dataclass(frozen=True)
class PerturbResult(Record):
    """By name: `effects` of changes at each position (entity, common, swap), `replacements` of whole texts (random,
    shuffled)."""

    texts: int
    length: int
    end_tokens: int
    energy: float  # mean of the real texts
    nll: float
    effects: dict[str, Effect]
    replacements: dict[str, Replacement]
    convention: str
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("unchanged", "rows", "replacement_rows")

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [effect.words, on.mean, on.standard_error, on.ends, on.middle, effect.nll.mean, effect.nll.standard_error]
            for effect in self.effects.values()
            for on in [effect.energy]
        ]
        columns = ["change", "energy change", "± energy", "|change| at the ends", "|change| in the middle"]
        return Table([*columns, "nll change", "± nll"], rows, convention=self.convention)

    @property
    def replacements_table(self) -> Table:
        rows: list[list[Cell]] = [["real text", self.energy, 0.0, None, None, self.nll, 0.0]]
        rows += [
            [of.words, of.energy, of.energy_change, of.energy_error, of.below_real, of.nll, of.nll_change]
            for of in self.replacements.values()
        ]
        columns = ["text", "energy", "against real", "± energy", "lower energy than real", "nll", "nll against real"]
        return Table(columns, rows, convention=self.convention)

    @property
    def unchanged(self) -> dict[str, list[float]]:
        """The line of the real texts, from the first position to the last."""
        return {"positions": [1, self.length], "energy": [self.energy] * 2, "nll": [self.nll] * 2}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.records()

    @property
    def replacement_rows(self) -> list[dict[str, Any]]:
        return self.replacements_table.records()


def perturbed(
    energy_B: Tensor,
    nll_B: Tensor,
    effects: Mapping[str, tuple[str, Tensor, Tensor]],
    replacements: Mapping[str, tuple[str, Tensor, Tensor]],
    *,
    length: int,
    end_tokens: int,
    convention: str,
) -> PerturbResult:
    """From energies and negative log-likelihoods of B real texts, (B, P) of their changed copies by name, and (B,) of
    the texts that replace them."""
    return PerturbResult(
        texts=len(energy_B),
        length=length,
        end_tokens=end_tokens,
        energy=float(energy_B.mean()),
        nll=float(nll_B.mean()),
        effects={
            name: Effect(words, _change(energy_BP, energy_B, end_tokens), _change(nll_BP, nll_B, end_tokens))
            for name, (words, energy_BP, nll_BP) in effects.items()
        },
        replacements={
            name: _replacement(words, other_B - energy_B, other_nll_B - nll_B, energy_B, nll_B)
            for name, (words, other_B, other_nll_B) in replacements.items()
        },
        convention=convention,
    )


def perturbed_sections(result: PerturbResult, *, about: str) -> list[Section]:
    return [
        Text("What this is", about),
        Numbers("Changes", result.table),
        _plot(result, "energy", "Energy by position of the change", "energy (lower = likelier)"),
        _plot(result, "nll", "Negative log-likelihood by position of the change", "nats of the whole text"),
        Numbers("Random text", result.replacements_table),
    ]


def _plot(result: PerturbResult, what: str, title: str, y_label: str) -> Plot:
    level, unchanged = getattr(result, what), result.unchanged
    lines = [Series("unchanged", unchanged["positions"], unchanged[what])]
    for effect in result.effects.values():
        lines.append(Series(effect.words, effect.positions, getattr(effect, what).level_by_position))
    means = "; ".join(f"{effect.words}: {getattr(effect, what).mean:+.3g}" for effect in result.effects.values())
    alt = f"Mean of {result.texts} texts that are changed at one position, against {level:.3g} unchanged. {means}."
    return Plot(title, LinePlot(lines, x_label="position of the change", y_label=y_label), alt=alt)


def _change(values_BP: Tensor, base_B: Tensor, end_tokens: int) -> PositionEffect:
    change_BP = values_BP.double() - base_B.double()[:, None]
    mean_B, positions = change_BP.mean(1), change_BP.shape[1]
    is_end_P = torch.arange(positions)
    is_end_P = (is_end_P < end_tokens) | (is_end_P >= positions - end_tokens)
    absolute_P = change_BP.abs().mean(0)
    return PositionEffect(
        unchanged=float(base_B.mean()),
        mean=float(mean_B.mean()),
        standard_error=_standard_error(mean_B),
        raised=float((mean_B > 0).double().mean()),
        ends=float(absolute_P[is_end_P].mean()),
        middle=float(absolute_P[~is_end_P].mean()),
        by_position=tuple(change_BP.mean(0).tolist()),
        error_by_position=tuple((change_BP.std(0) / math.sqrt(len(change_BP))).tolist()),
    )


def _replacement(words: str, change_B: Tensor, nll_change_B: Tensor, energy_B: Tensor, nll_B: Tensor) -> Replacement:
    return Replacement(
        words=words,
        energy=float((energy_B + change_B).mean()),
        energy_change=float(change_B.mean()),
        energy_error=_standard_error(change_B),
        below_real=float((change_B < 0).double().mean()),
        nll=float((nll_B + nll_change_B).mean()),
        nll_change=float(nll_change_B.mean()),
        nll_error=_standard_error(nll_change_B),
    )


def _standard_error(values_B: Tensor) -> float:
    return float(values_B.double().std()) / math.sqrt(len(values_B))
