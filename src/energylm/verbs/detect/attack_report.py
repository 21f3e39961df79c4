"""How many replaced tokens turn an energy's verdict, what they cost in perplexity, how well first order foresees.

    flipped(n)     fraction of texts whose verdict at most n edits turn, of those that were judged otherwise before
    fidelity       Spearman's rank correlation of first-order and exact changes of energy, text by text: over random
                   position × vocabulary replacements, and over the candidates that the search proposes

An edited list of tokens need not be what the tokenizer makes of its text, so every flip is also read anew as text.

Relations  `search.token_replacement` finds the edits; Bakhtin et al. 2019, appendix F shows two such texts.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text
from energylm.tables import Cell, Table

SHOWN = 6  # texts with their edits in a report


@dataclass(frozen=True)
class TextEdit(Record):
    """One replacement in words; energy and perplexity are those of the text after it."""

    position: int  # counted from 1
    before: str
    after: str
    predicted_change: float
    energy: float
    perplexity: float


@dataclass(frozen=True)
class AttackedText(Record):
    energy: float
    perplexity: float
    edits: tuple[TextEdit, ...]
    stopped: str  # reached, edits, stuck
    marked: str  # the text with its edits as [before→after]
    reread_energy: float | None  # of the edited text, read anew; None where it has become too long to read
    random_fidelity: float | None  # None where nothing changes the energy
    candidate_fidelity: float | None

    @property
    def flipped(self) -> bool:
        return self.stopped == "reached" and bool(self.edits)

    @property
    def was_there(self) -> bool:
        """Whether the verdict was the wanted one before any edit."""
        return self.stopped == "reached" and not self.edits


@dataclass(frozen=True)
class AttackOutcome(Record):
    """All texts in short; None where nothing was flipped, or nothing had to be."""

    texts: int
    there_before: int
    attacked: int
    flipped: int
    flipped_fraction: float | None
    median_edits: float | None
    perplexity_before: float | None  # median over flipped texts
    perplexity_after: float | None
    perplexity_raised: float | None  # fraction of flipped texts
    flips_that_survive_as_text: float | None
    fidelity_random: float | None
    fidelity_candidates: float | None


@dataclass(frozen=True)
class AttackResult(Record):
    towards: str
    threshold: float
    max_edits: int
    texts: tuple[AttackedText, ...]
    convention: str
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("outcome", "edits", "flipped_by", "examples")

    @property
    def attacked(self) -> list[AttackedText]:
        """The texts that had to be turned."""
        return [text for text in self.texts if not text.was_there]

    @property
    def flipped(self) -> list[AttackedText]:
        return [text for text in self.texts if text.flipped]

    def flipped_within(self, edits: int) -> float | None:
        """Fraction of the attacked texts that at most `edits` turn; None if there are none."""
        if not self.attacked:
            return None
        return sum(len(text.edits) <= edits for text in self.flipped) / len(self.attacked)

    @property
    def edits(self) -> list[int]:
        """Numbers of edits, none to all that are allowed."""
        return list(range(self.max_edits + 1))

    @property
    def flipped_by(self) -> list[float]:
        """Fraction of the attacked texts that at most so many `edits` turn; 0 if there are none."""
        return [self.flipped_within(edits) or 0.0 for edits in self.edits]

    @property
    def outcome(self) -> AttackOutcome:
        flipped = self.flipped
        reread = [text.reread_energy for text in flipped if text.reread_energy is not None]
        sign = -1 if self.towards == "real" else 1
        return AttackOutcome(
            texts=len(self.texts),
            there_before=len(self.texts) - len(self.attacked),
            attacked=len(self.attacked),
            flipped=len(flipped),
            flipped_fraction=self.flipped_within(self.max_edits),
            median_edits=_median([len(text.edits) for text in flipped]),
            perplexity_before=_median([text.perplexity for text in flipped]),
            perplexity_after=_median([text.edits[-1].perplexity for text in flipped]),
            perplexity_raised=_mean([float(text.edits[-1].perplexity > text.perplexity) for text in flipped]),
            flips_that_survive_as_text=_mean([float(sign * (energy - self.threshold) > 0) for energy in reread]),
            fidelity_random=_mean([text.random_fidelity for text in self.texts]),
            fidelity_candidates=_mean([text.candidate_fidelity for text in self.texts]),
        )

    @property
    def table(self) -> Table:
        total = len(self.attacked)
        rows: list[list[Cell]] = []
        for edits in self.edits[1:]:
            share = self.flipped_within(edits)
            here = sum(len(text.edits) == edits for text in self.flipped)
            error = None if share is None else math.sqrt(share * (1 - share) / total)
            rows.append([edits, here, share, error])
        rows.append(["not flipped", total - len(self.flipped), None, None])
        return Table(["edits", "texts flipped", "flipped so far", "standard error"], rows, convention=self.convention)

    @property
    def outcome_table(self) -> Table:
        return replace(self.outcome.table, convention=self.convention)

    @property
    def edited(self) -> list[tuple[int, AttackedText]]:
        """The first texts that were edited, with their numbers."""
        return [(number, text) for number, text in enumerate(self.texts, start=1) if text.edits][:SHOWN]

    @property
    def examples(self) -> list[dict[str, Any]]:
        return [_example(number, text) for number, text in self.edited]


def rank_correlation(predicted: Sequence[float], exact: Sequence[float]) -> float | None:
    """Spearman's; None where either side is constant."""
    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(exact) == 0:
        return None
    return float(spearmanr(predicted, exact).statistic)


def attacked_sections(result: AttackResult, *, about: str) -> list[Section]:
    counts, shares, name = result.edits, result.flipped_by, f"towards {result.towards}"
    samples = [Sample(_label(number, text), "", text.marked) for number, text in result.edited]
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Edits that turn the verdict", result.table),
        Numbers("In short", result.outcome_table),
        Plot(
            "Texts flipped",
            LinePlot([Series(name, counts, shares)], x_label="edits", y_label="fraction flipped"),
            alt=f"Fraction of {len(result.attacked)} texts flipped by so many edits: it ends at {shares[-1]:.2f}.",
        ),
    ]
    if result.attacked:
        steps = [[_after(text, edits) for text in result.attacked] for edits in counts]
        energies = [statistics.fmean([energy for energy, _ in texts]) for texts in steps]
        perplexities = [statistics.median([perplexity for _, perplexity in texts]) for texts in steps]
        for title, y_label, values in (
            ("Energy by edits", "mean energy (lower = likelier)", energies),
            ("Perplexity by edits", "median perplexity of the language model", perplexities),
        ):
            plot = LinePlot([Series(name, counts, values)], x_label="edits", y_label=y_label)
            ends = f"from {values[0]:.3g} to {values[-1]:.3g}"
            sections.append(
                Plot(title, plot, alt=f"{y_label} after each edit, {ends}; flipped texts stay as they are.")
            )
    return [*sections, Samples("Edited texts", samples)] if samples else sections


def _after(text: AttackedText, edits: int) -> tuple[float, float]:
    """Energy and perplexity after at most so many edits."""
    if not edits or not text.edits:
        return text.energy, text.perplexity
    last = text.edits[min(edits, len(text.edits)) - 1]
    return last.energy, last.perplexity


def _label(number: int, text: AttackedText) -> str:
    steps = "".join(f" → {edit.energy:.2f} ({edit.perplexity:.1f})" for edit in text.edits)
    return f"text {number}, energy (perplexity): {text.energy:.2f} ({text.perplexity:.1f}){steps}"


def _example(number: int, text: AttackedText) -> dict[str, Any]:
    return {
        "text": number,
        "edits": len(text.edits),
        "energy": text.energy,
        "energy after": text.edits[-1].energy,
        "perplexity": text.perplexity,
        "perplexity after": text.edits[-1].perplexity,
        "replacements": ", ".join(f"{edit.before.strip()}→{edit.after.strip()}" for edit in text.edits),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None
