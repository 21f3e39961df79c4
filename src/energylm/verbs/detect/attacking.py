"""Turn an energy's verdict on texts by replacing a few tokens: the work of `energylm probe attack`.

Texts are windows of a corpus, lines of a file, or a negatives folder's generated texts (towards real) and the real ones
beside them (towards fake). Edits are made in the energy's own tokens; special tokens are neither changed nor written.
The language model reads the same tokens where it shares the tokenizer, the text of them where it does not.

    flipped(n)     fraction of texts whose verdict at most n edits turn, of those that were judged otherwise before
    fidelity       Spearman's rank correlation of first-order and exact changes of energy, text by text: over random
                   position × vocabulary replacements, and over the candidates that the search proposes

An edited list of tokens need not be what the tokenizer makes of its text, so every flip is also read anew as text.

Relations  `search.token_replacement` is the search; Bakhtin et al. 2019, appendix F shows two such texts.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energylm.bundles.energy_model import EnergyGradients, EnergyModel, TextBoundEnergy, bind
from energylm.bundles.language_model import LanguageModel
from energylm.config.models import TEXT
from energylm.data.contrast import Contrast, pad
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.text_files import existing, read_texts
from energylm.data.tokenizer import special_ids, tokenizer_sha256, writable_tokens
from energylm.data.windows import SourceWindows
from energylm.errors import ConfigError, DataError, extra
from energylm.progress import progress
from energylm.randomness import derive_seed, generator, shuffled
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text, write_report
from energylm.search.token_replacement import (
    SIGN,
    ReplacementPath,
    best_replacements,
    first_order_changes,
    replace_tokens,
    with_replacements,
)
from energylm.tables import Cell, Table
from energylm.verbs.detect.probe import AttackEnergy

with extra("detect"):
    from scipy.stats import spearmanr

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

    def after(self, edits: int) -> tuple[float, float]:
        """Energy and perplexity after at most so many edits."""
        steps = [(self.energy, self.perplexity), *((edit.energy, edit.perplexity) for edit in self.edits)]
        return steps[min(edits, len(steps) - 1)]

    def example(self, number: int) -> dict[str, Any]:
        (energy, perplexity), (energy_after, perplexity_after) = self.after(0), self.after(len(self.edits))
        return {
            "text": number,
            "edits": len(self.edits),
            "energy": energy,
            "energy after": energy_after,
            "perplexity": perplexity,
            "perplexity after": perplexity_after,
            "replacements": ", ".join(f"{edit.before.strip()}→{edit.after.strip()}" for edit in self.edits),
        }


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
        """The texts that had to be turned: the verdict on the others was the wanted one before any edit."""
        return [text for text in self.texts if text.edits or text.stopped != "reached"]

    @property
    def flipped(self) -> list[AttackedText]:
        return [text for text in self.texts if text.edits and text.stopped == "reached"]

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
    def outcome(self) -> dict[str, float | None]:
        """All texts in short; None where nothing was flipped, or nothing had to be. Perplexities are medians over
        flipped texts."""
        flipped, texts = self.flipped, self.texts
        reread = [text.reread_energy for text in flipped if text.reread_energy is not None]
        sign = -1 if self.towards == "real" else 1
        return {
            "texts": len(texts),
            "there_before": len(texts) - len(self.attacked),
            "attacked": len(self.attacked),
            "flipped": len(flipped),
            "flipped_fraction": self.flipped_within(self.max_edits),
            "median_edits": _median([len(text.edits) for text in flipped]),
            "perplexity_before": _median([text.perplexity for text in flipped]),
            "perplexity_after": _median([text.edits[-1].perplexity for text in flipped]),
            "perplexity_raised": _mean([float(text.edits[-1].perplexity > text.perplexity) for text in flipped]),
            "flips_that_survive_as_text": _mean([float(sign * (energy - self.threshold) > 0) for energy in reread]),
            "fidelity_random": _mean([text.random_fidelity for text in texts]),
            "fidelity_candidates": _mean([text.candidate_fidelity for text in texts]),
        }

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
        rows: list[list[Cell]] = [[name.replace("_", " "), value] for name, value in self.outcome.items()]
        return Table(["what", "value"], rows, convention=self.convention)

    @property
    def edited(self) -> list[tuple[int, AttackedText]]:
        """The first texts that were edited, with their numbers."""
        return [(number, text) for number, text in enumerate(self.texts, start=1) if text.edits][:SHOWN]

    @property
    def examples(self) -> list[dict[str, Any]]:
        return [text.example(number) for number, text in self.edited]


@dataclass(frozen=True)
class ProbedText:
    tokens: list[int]
    editable_T: Tensor  # bool


def attack(verb: AttackEnergy, *, output: Path | None = None) -> AttackResult:
    """Edit every text; with `output` also write a report there."""
    energy, lm = EnergyModel.from_pretrained(verb.energy), LanguageModel.from_pretrained(verb.language_model)
    texts = load_texts(verb, energy, lm)
    attacks = _Attack(verb, energy, lm)
    attacked = []
    with progress(f"editing towards {verb.towards}", total=len(texts), unit="text") as bar:
        for number, text in enumerate(texts):
            attacked.append(attacks.text(text, number))
            bar.advance()
    budget = "" if verb.perplexity_budget is None else f"; at most {verb.perplexity_budget:g} × a text's perplexity"
    goal = f"energy {'below' if verb.towards == 'real' else 'above'} {verb.threshold:g}"
    result = AttackResult(
        towards=verb.towards,
        threshold=verb.threshold,
        max_edits=verb.edits,
        texts=tuple(attacked),
        convention=f"{len(texts)} texts towards {verb.towards} ({goal}); {verb.candidates} candidates scored "
        f"exactly an edit{budget}; perplexity by {lm.name}, all tokens of a text; texts that were there before any "
        "edit are left out",
    )
    if output is None:
        return result
    about = (
        f"The fewest tokens of a text are replaced, one after the other, until the energy {energy.name} calls it "
        f"{verb.towards}. {result.convention}. First order and exact changes of energy are compared by Spearman's "
        f"rank correlation on {verb.fidelity_pairs} random replacements a text and on the candidates."
    )
    sections = [Text("What this is", about), *_sections(result)]
    title = f"Token replacement against {energy.name}"
    return replace(result, report=write_report(output, title=title, sections=sections))


class _Attack:
    """What all texts of a run share."""

    def __init__(self, verb: AttackEnergy, energy: EnergyModel, lm: LanguageModel) -> None:
        self.verb, self.energy, self.gradients = verb, energy, EnergyGradients(energy)
        self.nll = _nll_per_token(lm, energy)
        self.allowed_V = writable_tokens(energy.tokenizer, energy.vocabulary_size)
        self.special = torch.tensor(sorted(special_ids(energy.tokenizer)))

    def text(self, text: ProbedText, number: int) -> AttackedText:
        verb, tokens_T = self.verb, torch.tensor(text.tokens)
        editable_T = text.editable_T & ~torch.isin(tokens_T, self.special)
        fidelity = self._fidelity(tokens_T, editable_T, number)
        own_nll = float(self.nll(tokens_T[None])[0])
        path = replace_tokens(
            self.gradients,
            tokens_T,
            towards=verb.towards,
            goal=verb.threshold,
            max_edits=verb.edits,
            candidates=verb.candidates,
            allowed_V=self.allowed_V,
            editable_T=editable_T,
            nll=self.nll,
            max_nll=None if verb.perplexity_budget is None else own_nll + math.log(verb.perplexity_budget),
        )
        edits = tuple(
            TextEdit(
                position=edit.position + 1,
                before=self._decode([edit.before]),
                after=self._decode([edit.after]),
                predicted_change=edit.predicted_change,
                energy=edit.energy,
                perplexity=_perplexity(edit.nll),
            )
            for edit in path.edits
        )
        marked, reread = self._marked(path), self._reread(path)
        return AttackedText(path.energy, _perplexity(path.nll), edits, path.stopped, marked, reread, *fidelity)

    def _fidelity(self, tokens_T: Tensor, editable_T: Tensor, number: int) -> tuple[float | None, float | None]:
        """Rank correlations of first-order and exact changes: random replacements, and the best candidates."""
        energy, gradient_TD = self.gradients.token_gradients(tokens_T)
        change_TV = first_order_changes(gradient_TD, self.gradients.token_table, tokens_T.to(gradient_TD.device)).cpu()
        open_TV = editable_T[:, None] & self.allowed_V
        open_TV.scatter_(1, tokens_T[:, None], False)
        open_N = open_TV.flatten().nonzero()[:, 0]
        if not len(open_N):
            return None, None
        draw = generator(self.verb.seed, "fidelity", number)
        flat_R = open_N[torch.randint(len(open_N), (self.verb.fidelity_pairs,), generator=draw)]
        random = flat_R // change_TV.shape[1], flat_R % change_TV.shape[1]
        gain_TV = (SIGN[self.verb.towards] * change_TV).masked_fill(~open_TV, -math.inf)
        best = best_replacements(gain_TV, count=self.verb.candidates)
        correlations = []
        for positions_K, tokens_K in (random, best):
            copies_KT = with_replacements(tokens_T, positions_K, tokens_K)
            exact_K = self.energy.energies(copies_KT, torch.full((len(copies_KT),), len(tokens_T))).cpu() - energy
            correlations.append(rank_correlation(change_TV[positions_K, tokens_K].tolist(), exact_K.tolist()))
        return correlations[0], correlations[1]

    def _marked(self, path: ReplacementPath) -> str:
        """The text with each edit as [before→after]."""
        pieces, start = [], 0
        for edit in sorted(path.edits, key=lambda edit: edit.position):
            pieces.append(self._decode(path.tokens[start : edit.position]))
            pieces.append(f"[{self._decode([edit.before])}→{self._decode([edit.after])}]")
            start = edit.position + 1
        return "".join([*pieces, self._decode(path.tokens[start:])])

    def _reread(self, path: ReplacementPath) -> float | None:
        """The energy of the edited text as anyone would pass it on: written out and read again."""
        try:
            return float(self.energy.text_energies([self._decode(path.tokens_after())])[0])
        except DataError:  # written out, it takes more tokens than the energy holds
            return None

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.energy.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _perplexity(nll: float | None) -> float:
    assert nll is not None  # the language model tells it with every step
    return math.exp(nll)


def _nll_per_token(lm: LanguageModel, energy: EnergyModel) -> Callable[[Tensor], Tensor]:
    """(K, T) ids of the energy -> (K,) nats per token of the language model."""

    def of_ids(tokens_KT: Tensor) -> Tensor:
        count, length = tokens_KT.shape
        return -lm.token_log_probs(tokens_KT, torch.full((count,), length)).double().mean(1)

    def of_text(tokens_KT: Tensor) -> Tensor:
        texts = energy.tokenizer.backend_tokenizer.decode_batch(tokens_KT.tolist(), skip_special_tokens=True)
        return torch.tensor([-score.log_prob / score.tokens for score in lm.score(texts)], dtype=torch.float64)

    same = tokenizer_sha256(lm.tokenizer) == tokenizer_sha256(energy.tokenizer)
    return of_ids if same else of_text


def check_texts(verb: AttackEnergy) -> str:
    """Find the texts without loading a model; which they are, in words."""
    if verb.negatives is not None and verb.corpus is not None:
        negatives = Negatives.open(verb.negatives)
        negatives.check(corpus=Corpus.open(verb.corpus))
        kind = "generated" if verb.towards == "real" else "real"
        return f"{min(verb.texts, len(negatives))} {kind} texts of {verb.negatives}"
    if existing(verb.source or "").is_dir():
        _windows(verb).check()
        return f"{verb.texts} windows of {verb.length} tokens of {verb.source} ({verb.split})"
    return f"the first {verb.texts} texts of {verb.source}"


def load_texts(verb: AttackEnergy, energy: EnergyModel, lm: LanguageModel) -> list[ProbedText]:
    if verb.negatives is not None and verb.corpus is not None:
        return _of_negatives(verb, Negatives.open(verb.negatives), Corpus.open(verb.corpus), energy)
    source = Path(verb.source or "")
    if source.is_dir():
        return _own(energy, lm, _windows(verb).load(lm.tokenizer, model=verb.language_model))
    texts = list(islice(read_texts(source, field=verb.field), verb.texts))
    if not texts:
        raise DataError(f"{verb.source} holds no text; give a file with one text a line")
    return _everywhere(*energy.encode_texts(texts))


def _of_negatives(verb: AttackEnergy, negatives: Negatives, corpus: Corpus, energy: EnergyModel) -> list[ProbedText]:
    if verb.only_generated and energy.reads == TEXT:
        raise ConfigError(
            f"only_generated came, but {energy.name} reads text, in tokens that do not say which were generated; leave "
            "it out, or give an energy that reads tokens"
        )
    positions = np.arange(min(verb.texts, len(negatives)), dtype=np.int64)
    rows = shuffled(positions, len(negatives), seed=derive_seed(verb.seed, "attacked contexts"))
    contrast = Contrast(negatives, corpus, rows=rows)
    both = contrast.sequences(positions, np.zeros((len(rows), 1), dtype=np.int64))  # real, generated, real, …
    texts = _own(energy, corpus, both[1::2] if verb.towards == "real" else both[::2])
    if not verb.only_generated:
        return texts
    context_B = negatives.rows(rows).context_length_B.tolist()
    suffix = negatives.config.side == "suffix"
    for text, context in zip(texts, context_B, strict=True):
        length = len(text.tokens)
        text.editable_T[slice(0, context) if suffix else slice(length - context, length)] = False
    return texts


def _own(energy: EnergyModel, writer: LanguageModel | Corpus, sequences: list[list[int]]) -> list[ProbedText]:
    """Sequences of the writer's tokens in the energy's own."""
    bound = bind(energy, writer)
    return _everywhere(*(bound.encode(sequences) if isinstance(bound, TextBoundEnergy) else pad(sequences)))


def _everywhere(tokens_BT: Tensor, lengths_B: Tensor) -> list[ProbedText]:
    return [
        ProbedText(row[:length], torch.ones(length, dtype=torch.bool))
        for row, length in zip(tokens_BT.tolist(), lengths_B.tolist(), strict=True)
    ]


def _windows(verb: AttackEnergy) -> SourceWindows:
    return SourceWindows(verb.source or "", verb.length, verb.texts, verb.seed, verb.split)


def rank_correlation(predicted: Sequence[float], exact: Sequence[float]) -> float | None:
    """Spearman's; None where either side is constant."""
    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(exact) == 0:
        return None
    return float(spearmanr(predicted, exact).statistic)


def _sections(result: AttackResult) -> list[Section]:
    def plot(title: str, values: Sequence[float], y_label: str, alt: str) -> Plot:
        line = Series(f"towards {result.towards}", result.edits, values)
        return Plot(title, LinePlot([line], x_label="edits", y_label=y_label), alt=alt)

    flipped = (
        f"Fraction of {len(result.attacked)} texts flipped by so many edits: it ends at {result.flipped_by[-1]:.2f}."
    )
    sections: list[Section] = [
        Numbers("Edits that turn the verdict", result.table),
        Numbers("In short", result.outcome_table),
        plot("Texts flipped", result.flipped_by, "fraction flipped", flipped),
    ]
    if result.attacked:
        steps = [[text.after(edits) for text in result.attacked] for edits in result.edits]
        energies = [statistics.fmean([energy for energy, _ in texts]) for texts in steps]
        perplexities = [statistics.median([perplexity for _, perplexity in texts]) for texts in steps]
        for title, y_label, values in (
            ("Energy by edits", "mean energy (lower = likelier)", energies),
            ("Perplexity by edits", "median perplexity of the language model", perplexities),
        ):
            ends = f"from {values[0]:.3g} to {values[-1]:.3g}"
            sections.append(
                plot(title, values, y_label, f"{y_label} after each edit, {ends}; flipped texts stay as they are.")
            )
    samples = [Sample(_label(number, text), "", text.marked) for number, text in result.edited]
    return [*sections, Samples("Edited texts", samples)] if samples else sections


def _label(number: int, text: AttackedText) -> str:
    steps = "".join(f" → {edit.energy:.2f} ({edit.perplexity:.1f})" for edit in text.edits)
    return f"text {number}, energy (perplexity): {text.energy:.2f} ({text.perplexity:.1f}){steps}"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None
