"""Change real texts at every position and see what an energy and a language model say: `energylm probe perturb`'s work.

    ΔE_p = mean over texts of E(text changed at p) − E(text)              likewise ΔNLL_p, in nats of the whole text

All copies of a text, one for each position and kind of change, go through the models in one batch. Every text is
compared with itself, so what texts differ in cancels; errors are standard errors over texts. The *ends* are the tokens
that negatives had generated in training, the *middle* what was always real. Random texts stand beside the real ones:
tokens drawn uniformly from the vocabulary, and the text's own tokens in random order.

    replaced    copy p of a text has a token at position p                                   T copies
    swapped     copy p has positions p and p + 1 exchanged                               T − 1 copies

Bakhtin et al. 2019, §5.6 and fig. 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energylm.bundles.energy_model import bind
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.zero_shot_energy import load_energy
from energylm.contracts import SequenceEnergy
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import commonest_name, commonest_word, writable_tokens
from energylm.errors import ConfigError
from energylm.progress import progress
from energylm.randomness import generator
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.verbs.detect.probe import PerturbTexts

ROWS_AT_ONCE = 4096  # copies that are made at a time; the models cut them into micro-batches of their own
COUNTED_TOKENS = 1 << 21  # of a corpus, to find its commonest word and name


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


def perturb(verb: PerturbTexts, *, output: Path | None = None) -> PerturbResult:
    """Measure; with `output` also write a report there."""
    lm, loaded = LanguageModel.from_pretrained(verb.language_model), load_energy(verb.energy)
    energy, windows = bind(loaded, lm), verb.windows.load(lm.tokenizer, model=verb.language_model)
    tokens_BT = torch.tensor(windows)
    replacing = _replacing_tokens(verb, lm, tokens_BT)
    shown = {name: lm.decode([token]).strip() for name, token in replacing.items()}
    words = {
        "entity": f"replaced with “{shown['entity']}” (name)",
        "common": f"replaced with “{shown['common']}” (commonest)",
        "swap": "neighbours swapped",
    }
    groups = []
    with progress("perturbing", total=len(tokens_BT), unit="text") as bar:
        for group_BT in torch.split(tokens_BT, max(1, ROWS_AT_ONCE // tokens_BT.shape[1])):
            copies = {name: replaced_at_every_position(group_BT, token) for name, token in replacing.items()}
            copies["swap"] = swapped_at_every_position(group_BT)
            groups.append({name: _both(energy, lm, of_group) for name, of_group in copies.items()})
            bar.advance(len(group_BT))
    effects = {
        name: (text, torch.cat([group[name][0] for group in groups]), torch.cat([group[name][1] for group in groups]))
        for name, text in words.items()
    }
    replacements = {
        name: (text, *_both(energy, lm, texts_BT)) for name, (text, texts_BT) in _random(verb, lm, tokens_BT).items()
    }
    result = perturbed(
        *_both(energy, lm, tokens_BT),
        effects,
        replacements,
        length=verb.length,
        end_tokens=verb.ends,
        convention=f"{len(tokens_BT)} texts of {verb.length} tokens of {Path(verb.source).name}; every text "
        f"against itself, errors over texts; energies of {loaded.name} (lower = likelier), nats of whole texts by "
        f"{lm.name}; ends are {verb.ends} tokens on either side",
    )
    if output is None:
        return result
    about = (
        f"Real texts, changed at one position at a time, under the energy {loaded.name} and the language model "
        f"{lm.name}. {result.convention}."
    )
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Changes", result.table),
        _plot(result, "energy", "Energy by position of the change", "energy (lower = likelier)"),
        _plot(result, "nll", "Negative log-likelihood by position of the change", "nats of the whole text"),
        Numbers("Random text", result.replacements_table),
    ]
    return replace(result, report=write_report(output, title=f"Perturbations of {loaded.name}", sections=sections))


def _both(energy: SequenceEnergy, lm: LanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and negative log-likelihoods of texts of one length, (…, T) -> (…), float64 on the CPU."""
    tokens_RT = tokens.flatten(0, -2)
    lengths_R = torch.full((len(tokens_RT),), tokens.shape[-1])
    values = (energy.energies(tokens_RT, lengths_R), -lm.token_log_probs(tokens_RT, lengths_R).double().sum(1))
    energy_R, nll_R = (value.double().cpu().view(tokens.shape[:-1]) for value in values)
    return energy_R, nll_R


def _random(verb: PerturbTexts, lm: LanguageModel, tokens_BT: Tensor) -> dict[str, tuple[str, Tensor]]:
    draw = generator(verb.seed, "random text")
    writable_N = writable_tokens(lm.tokenizer, lm.vocabulary_size).nonzero()[:, 0]
    uniform_BT = writable_N[torch.randint(len(writable_N), tokens_BT.shape, generator=draw)]
    order_BT = torch.rand(tokens_BT.shape, generator=draw).argsort(dim=1)
    return {
        "random": ("random tokens", uniform_BT),
        "shuffled": ("its own tokens, shuffled", tokens_BT.gather(1, order_BT)),
    }


def _replacing_tokens(verb: PerturbTexts, lm: LanguageModel, tokens_BT: Tensor) -> dict[str, int]:
    """The tokens that stand for an entity and for the commonest word: those named, or found by counting."""
    counted = tokens_BT.flatten().numpy()
    if Path(verb.source).is_dir():
        counted = Corpus.open(verb.source).split_tokens("train")[:COUNTED_TOKENS]
    counts_V = np.bincount(counted, minlength=lm.vocabulary_size)
    choose = {"entity": (verb.entity, commonest_name), "common": (verb.common, commonest_word)}
    return {
        name: _single_token(name, word, lm) if word is not None else find(lm.tokenizer, counts_V)
        for name, (word, find) in choose.items()
    }


def _single_token(name: str, word: str, lm: LanguageModel) -> int:
    ids = lm.encode(word)
    if len(ids) != 1:
        raise ConfigError(
            f"{name}: {word!r} is {len(ids)} tokens of {lm.name}, but one must go in the place of one; give another "
            "word (most tokens begin with a space), or leave it out to have one chosen"
        )
    return ids[0]


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
            name: _replacement(words, other_B, energy_B, other_nll_B, nll_B)
            for name, (words, other_B, other_nll_B) in replacements.items()
        },
        convention=convention,
    )


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
    position_P = torch.arange(positions)
    is_end_P = (position_P < end_tokens) | (position_P >= positions - end_tokens)
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


def _replacement(words: str, energy_B: Tensor, real_energy_B: Tensor, nll_B: Tensor, real_nll_B: Tensor) -> Replacement:
    change_B, nll_change_B = energy_B - real_energy_B, nll_B - real_nll_B
    return Replacement(
        words=words,
        energy=float((real_energy_B + change_B).mean()),
        energy_change=float(change_B.mean()),
        energy_error=_standard_error(change_B),
        below_real=float((change_B < 0).double().mean()),
        nll=float((real_nll_B + nll_change_B).mean()),
        nll_change=float(nll_change_B.mean()),
        nll_error=_standard_error(nll_change_B),
    )


def _standard_error(values_B: Tensor) -> float:
    return float(values_B.double().std()) / math.sqrt(len(values_B))


def replaced_at_every_position(tokens_BT: Tensor, token: int) -> Tensor:
    """(B, T, T): copy p of each text has `token` at position p."""
    here_TT = torch.eye(tokens_BT.shape[1], dtype=torch.bool, device=tokens_BT.device)
    return torch.where(here_TT, token, tokens_BT[:, None, :])


def swapped_at_every_position(tokens_BT: Tensor) -> Tensor:
    """(B, T − 1, T): copy p of each text has the tokens of positions p and p + 1 exchanged."""
    length = tokens_BT.shape[1]
    left_P = torch.arange(length - 1, device=tokens_BT.device)
    source_PT = torch.arange(length, device=tokens_BT.device).repeat(length - 1, 1)
    source_PT[left_P, left_P] = left_P + 1
    source_PT[left_P, left_P + 1] = left_P
    return tokens_BT[:, source_PT]
