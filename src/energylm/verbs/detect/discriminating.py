"""An energy on generated texts beside the real ones of the same contexts.

A cell of a generalization grid (`discriminate`): energies are read as a score, higher = machine, with the calibrated
threshold 0. Where the texts are in tokens that the energy does not read (a third-party generator has its own
tokenizer), real and generated ones alike are decoded and encoded anew. Test windows that stand in what the energy
learnt from are found by hashes of their tokens: a few are left out and counted (news repeat themselves), many refused.

OUTPUT/discrimination.json   all measures with intervals, counts, and accuracy by length of the given context

How far apart the two are put (`compare`, `energylm probe differences`):

    difference = score(real) − score(generated) = E(generated) − E(real)              score = −E

A difference above the margin has no ranking loss; above 0 the pair is ordered rightly. Bakhtin et al. 2019 use a margin
of 1 in eq. 2 and draw 0.1 in figure 3, so margins are a parameter, told with every number. Errors are over contexts,
since the generated texts of a context share its real one.

Relations  `data.contrast` puts the texts side by side; `objectives.residual_energy` trains differences;
           `estimators.discrimination` asks for one threshold for all contexts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energylm.bundles.energy_model import EnergyModel, TextBoundEnergy, bind
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.zero_shot_energy import ZeroShotEnergy, load_energy
from energylm.config.models import TOKENS
from energylm.config.texts import CellConfig
from energylm.contracts import SequenceEnergy
from energylm.data.contrast import Contrast, pad
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives, NegativesSource, paired_sources
from energylm.data.overlap import SeenWindows, Tokens
from energylm.data.tokenizer import tokenizer_sha256
from energylm.errors import ConfigError, DataError, VocabularyMismatch
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.files import read_json, write_json
from energylm.progress import progress, say
from energylm.randomness import derive_seed, shuffled
from energylm.records import LOCAL, Record
from energylm.report.grid_report import GridCell
from energylm.report.plots import LinePlot, histogram_plot
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.verbs.detect.evaluating import measures_table
from energylm.verbs.detect.probe import CompareEnergies, Discriminate, FitLikelihood

RESULT_FILE = "discrimination.json"
TOLERATED_OVERLAP = 0.05  # of test windows; more is a mistake in the choice of texts, not chance
CONTEXTS_AT_ONCE = 64
Energy = EnergyModel | ZeroShotEnergy
SIDES = {"suffix": "left to right", "prefix": "right to left"}
BINS = 40
_WINDOW_BITS = 40  # of a group's number; the bits above tell corpora apart


@dataclass(frozen=True)
class ContextDiscrimination(Record):
    """How well texts with so many tokens of real context are told apart."""

    context_tokens: int
    measured: Discrimination


@dataclass(frozen=True)
class DiscriminationResult(Record):
    measured: Discrimination
    by_context: tuple[ContextDiscrimination, ...]  # where context lengths vary
    overlapping: int  # test windows left out, since the energy has learnt from them

    @property
    def table(self) -> Table:
        by_context = {f"{each.context_tokens} tokens given": each.measured for each in self.by_context}
        return measures_table({"all": self.measured} | by_context)


@dataclass(frozen=True)
class FittedLikelihood(Record):
    model: Path
    sign: int
    threshold: float


@dataclass(frozen=True)
class TextEnergies:
    """Energies of N contexts with their real text and K generated ones each."""

    real_N: NDArray[np.float64]
    machine_NK: NDArray[np.float64]
    window_N: NDArray[np.int64]
    context_tokens_N: NDArray[np.int64]


def discriminate(verb: Discriminate, *, output: Path | None = None) -> DiscriminationResult:
    """Measure the energy on all texts of the negatives; with `output`, write the result there."""
    energy = load_energy(verb.energy)
    sources = paired_sources(verb.negatives, verb.corpus)
    unseen, overlapping = _unseen_rows(verb, sources)
    parts = [
        text_energies(energy, negatives, corpus, rows=rows)
        for (negatives, corpus), rows in zip(sources, unseen, strict=True)
    ]
    groups = [part.window_N + (number << _WINDOW_BITS) for number, part in zip(_texts_of(sources), parts, strict=True)]
    real_N = np.concatenate([part.real_N for part in parts])
    machine_M = np.concatenate([part.machine_NK.ravel() for part in parts])
    real_group_N = np.concatenate(groups)
    machine_group_M = np.concatenate(
        [group_N.repeat(part.machine_NK.shape[1]) for group_N, part in zip(groups, parts, strict=True)]
    )
    real_cut_N = np.concatenate([part.context_tokens_N for part in parts])
    machine_cut_M = np.concatenate([part.context_tokens_N.repeat(part.machine_NK.shape[1]) for part in parts])

    def measure(real: NDArray[np.bool_], machine: NDArray[np.bool_]) -> Discrimination:
        return discrimination(
            real_N[real],
            machine_M[machine],
            real_groups=real_group_N[real],
            machine_groups=machine_group_M[machine],
            resamples=verb.resamples,
            seed=verb.seed,
        )

    cuts = np.unique(real_cut_N)
    by_context = [ContextDiscrimination(int(cut), measure(real_cut_N == cut, machine_cut_M == cut)) for cut in cuts]
    everything = measure(np.ones_like(real_cut_N, bool), np.ones_like(machine_cut_M, bool))
    result = DiscriminationResult(everything, tuple(by_context) if len(cuts) > 1 else (), overlapping)
    if output is not None:
        write_json(output / RESULT_FILE, result.to_json())
    return result


def grid_cell(cell: CellConfig) -> GridCell:
    """A cell with what was kept of its discrimination."""
    if cell.result is None:
        return GridCell(cell)
    result = DiscriminationResult.from_json(read_json(Path(cell.result) / RESULT_FILE))
    by_context = {each.context_tokens: each.measured for each in result.by_context}
    return GridCell(cell, result.measured, by_context, result.overlapping)


def fit_likelihood(verb: FitLikelihood, output: Path) -> FittedLikelihood:
    """A zero-shot score of the language model as an energy, saved as `output`, with the sign and threshold that tell
    these validation texts apart best."""
    observer = None if verb.observer is None else LanguageModel.from_pretrained(verb.observer)
    energy = ZeroShotEnergy(LanguageModel.from_pretrained(verb.language_model), verb.score, observer=observer)
    real, machine = [], []
    for negatives, corpus in paired_sources(verb.negatives, verb.corpus):
        if tokenizer_sha256(energy.tokenizer) != corpus.manifest.tokenizer.sha256:
            raise VocabularyMismatch(
                f"{verb.language_model} reads other tokens than {corpus.folder} holds; give the language model that "
                f"wrote {negatives.folder}, or one of its tokenizer"
            )
        contrast = Contrast(negatives, corpus)
        contexts = np.arange(len(contrast), dtype=np.int64)
        sequences = contrast.sequences(contexts, np.tile(np.arange(contrast.k), (len(contrast), 1)))
        real += sequences[:: 1 + contrast.k]
        machine += [text for index, text in enumerate(sequences) if index % (1 + contrast.k)]
    fitted = energy.fitted(pad(real), pad(machine))
    fitted.save_pretrained(output)
    return FittedLikelihood(output, fitted.rule.sign, fitted.rule.threshold)


def text_energies(
    energy: Energy, negatives: Negatives, corpus: Corpus, *, rows: NDArray[np.int64] | None = None
) -> TextEnergies:
    """Energies of the real and the generated texts of some rows of a negatives folder, all where none are named."""
    contrast = Contrast(negatives, corpus, rows=rows)
    reads_ids = energy.reads == TOKENS and tokenizer_sha256(energy.tokenizer) == corpus.manifest.tokenizer.sha256
    encode = pad if reads_ids else TextBoundEnergy(energy, corpus.tokenizer).encode
    energy_NJ = side_by_side(
        lambda texts: energy.energies(*encode(texts)), contrast, contrast.k, what="judging"
    ).numpy()
    given = negatives.rows(contrast.rows)
    return TextEnergies(energy_NJ[:, 0], energy_NJ[:, 1:], given.window_B, given.context_length_B)


@torch.no_grad()
def side_by_side(energies: Callable[[list[list[int]]], Tensor], contrast: Contrast, k: int, *, what: str) -> Tensor:
    """(N, 1 + k) energies of each context's real text and of its first k generated ones, float64 on the CPU."""
    copies_K, parts = np.arange(k, dtype=np.int64), [torch.zeros(0, 1 + k, dtype=torch.float64)]
    with progress(what, total=len(contrast), unit="context") as bar:
        for start in range(0, len(contrast), CONTEXTS_AT_ONCE):
            chosen = np.arange(start, min(start + CONTEXTS_AT_ONCE, len(contrast)), dtype=np.int64)
            sequences = contrast.sequences(chosen, np.tile(copies_K, (len(chosen), 1)))
            parts.append(energies(sequences).double().cpu().view(len(chosen), 1 + k))
            bar.advance(len(chosen))
    return torch.cat(parts)


def _texts_of(sources: Sequence[NegativesSource]) -> list[int]:
    """A number for each source; sources that cut the same texts into the same windows have the same."""
    forms = []
    for negatives, corpus in sources:
        own = negatives.config
        forms.append((corpus.manifest.identity, own.split, own.length, own.stride or own.length, own.documents))
    return [forms.index(form) for form in forms]


def _unseen_rows(verb: Discriminate, sources: Sequence[NegativesSource]) -> tuple[list[NDArray[np.int64]], int]:
    """Of each source the rows whose window the energy has not learnt from, and how many were left out."""
    all_rows = [np.arange(len(negatives), dtype=np.int64) for negatives, _ in sources]
    if not verb.trained_on:
        return all_rows, 0
    learnt = paired_sources(verb.trained_on, verb.trained_on_corpus)
    reader = learnt[0][1]  # all of them share its tokenizer
    seen = SeenWindows([window for negatives, corpus in learnt for window in _windows(negatives, corpus)])
    unseen = [
        rows[~seen.contains(_as_tokens_of(reader, corpus, _windows(negatives, corpus)))]
        for rows, (negatives, corpus) in zip(all_rows, sources, strict=True)
    ]
    total, left_out = sum(map(len, all_rows)), sum(map(len, all_rows)) - sum(map(len, unseen))
    if left_out > TOLERATED_OVERLAP * total:
        raise DataError(
            f"{left_out:,} of {total:,} test texts of {', '.join(verb.negatives)} stand in the texts that the energy "
            "learnt from (found by hashes of their tokens); test on another split, or on another corpus"
        )
    if left_out:
        say(f"{left_out:,} of {total:,} test texts stand in the training texts, too; they are left out")
    return unseen, left_out


def _windows(negatives: Negatives, corpus: Corpus) -> list[Tokens]:
    """The real texts of all rows."""
    return list(negatives.corpus_windows(corpus).gather(negatives.windows))


def _as_tokens_of(reader: Corpus, corpus: Corpus, windows: list[Tokens]) -> list[Tokens]:
    """Windows in the tokens of the corpus `reader`."""
    if corpus.manifest.tokenizer.sha256 == reader.manifest.tokenizer.sha256:
        return windows
    texts = corpus.tokenizer.backend_tokenizer.decode_batch([list(map(int, window)) for window in windows])
    return [encoding.ids for encoding in reader.tokenizer.backend_tokenizer.encode_batch(texts)]


@dataclass(frozen=True)
class MarginShare(Record):
    margin: float
    above: float  # fraction of pairs
    standard_error: float  # over contexts
    ranking_loss: float  # mean of max(0, margin − difference)


@dataclass(frozen=True)
class Differences(Record):
    """Of one generator."""

    name: str
    contexts: int
    per_context: int
    mean: float
    standard_error: float
    median: float
    margins: tuple[MarginShare, ...]
    values: tuple[float, ...]  # of all pairs


@dataclass(frozen=True)
class DifferencesResult(Record):
    """The folders as `g1`, `g2`, … as they came, each with the outline of its histogram in `curves`."""

    generators: dict[str, Differences]
    convention: str
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("curves", "rows")

    @property
    def table(self) -> Table:
        columns = ["generated", "pairs", "mean", "± mean", "median"]
        for share in next(iter(self.generators.values())).margins:
            columns += [f"> {share.margin:g}", f"± {share.margin:g}"]
        rows: list[list[Cell]] = [
            [
                *(each.name, len(each.values), each.mean, each.standard_error, each.median),
                *(cell for share in each.margins for cell in (share.above, share.standard_error)),
            ]
            for each in self.generators.values()
        ]
        return Table(columns, rows, convention=self.convention)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.records()

    @property
    def histogram(self) -> LinePlot:
        """All generators in the same bins."""
        generators = self.generators.values()
        edges = np.histogram_bin_edges([value for each in generators for value in each.values], bins=BINS)
        counts = {each.name: np.histogram(each.values, bins=edges)[0].tolist() for each in generators}
        return histogram_plot(edges.tolist(), counts, x_label="E(generated) − E(real)")

    @property
    def curves(self) -> dict[str, dict[str, list[float]]]:
        lines = zip(self.generators, self.histogram.series, strict=True)
        return {name: {"x": list(line.x), "y": list(line.y)} for name, line in lines}

    def sections(self, *, about: str) -> list[Section]:
        means = "; ".join(
            f"{each.name}: mean {each.mean:.3g}, {each.margins[0].above:.1%} above {each.margins[0].margin:g}"
            for each in self.generators.values()
        )
        return [
            Text("What this is", about),
            Numbers("Differences", self.table),
            Plot("Distribution", self.histogram, alt=f"Densities of E(generated) − E(real). {means}."),
        ]


def compare(verb: CompareEnergies, *, output: Path | None = None) -> DifferencesResult:
    """Measure; with `output` also write a report there."""
    energy, corpus = load_energy(verb.energy), Corpus.open(verb.corpus)
    bound = bind(energy, corpus)
    generators = {
        f"g{number}": _of_folder(verb, folder, name, corpus, bound)
        for number, (folder, name) in enumerate(_names(verb.negatives).items(), start=1)
    }
    result = DifferencesResult(
        generators,
        convention=f"E(generated) − E(real) of the same context by {energy.name}, at most {verb.contexts:,} contexts "
        f"of {Path(verb.corpus).name} with {verb.per_context} generated texts each; errors over contexts",
    )
    if output is None:
        return result
    about = f"How far apart the energy {energy.name} puts real and generated endings. {result.convention}."
    page = write_report(output, title=f"Score differences of {energy.name}", sections=result.sections(about=about))
    return replace(result, report=page)


def check_folders(verb: CompareEnergies) -> None:
    """Find every input without loading a model."""
    locate(verb.energy)
    corpus = Corpus.open(verb.corpus)
    for folder in verb.negatives:
        negatives = Negatives.open(folder)
        negatives.check(corpus=corpus)
        if verb.per_context > negatives.k:
            raise ConfigError(
                f"per_context is {verb.per_context}, but {folder} holds {negatives.k} texts of each context; ask for "
                "fewer, or generate more (-k)"
            )
    if len(set(verb.negatives)) < len(verb.negatives):
        raise ConfigError(f"negatives: a folder came twice ({', '.join(verb.negatives)}); give each once")


def differences(name: str, real_B: Tensor, generated_BK: Tensor, *, margins: Sequence[float]) -> Differences:
    """From energies of B real texts and of K generated ones beside each."""
    difference_BK = (generated_BK - real_B[:, None]).double()
    mean_B = difference_BK.mean(1)
    shares = []
    for margin in margins:
        above_B = (difference_BK > margin).double().mean(1)
        loss = (margin - difference_BK).clamp(min=0).mean()
        shares.append(MarginShare(margin, float(above_B.mean()), _error(above_B), float(loss)))
    return Differences(
        name=name,
        contexts=len(real_B),
        per_context=generated_BK.shape[1],
        mean=float(mean_B.mean()),
        standard_error=_error(mean_B),
        median=float(np.median(difference_BK.numpy(force=True))),
        margins=tuple(shares),
        values=tuple(difference_BK.flatten().tolist()),
    )


def _of_folder(verb: CompareEnergies, folder: str, name: str, corpus: Corpus, energy: SequenceEnergy) -> Differences:
    negatives = Negatives.open(folder)
    contrast = Contrast(negatives, corpus, rows=_rows(verb, negatives))
    energy_BJ = side_by_side(
        lambda texts: energy.energies(*pad(texts)), contrast, verb.per_context, what=f"scoring {name}"
    )
    return differences(name, energy_BJ[:, 0], energy_BJ[:, 1:], margins=verb.margin)


def _rows(verb: CompareEnergies, negatives: Negatives) -> NDArray[np.int64]:
    """Contexts at random; only those continued by `new_tokens`, if so many are asked for."""
    order = shuffled(np.arange(len(negatives)), len(negatives), seed=derive_seed(verb.seed, "compared contexts"))
    if verb.new_tokens is not None:
        order = order[negatives.config.length - negatives.rows(order).context_length_B == verb.new_tokens]
    if len(order) < 2:
        raise DataError(
            f"{negatives.folder} has {len(order)} contexts that are continued by {verb.new_tokens} tokens, two are "
            "needed; ask for another length, or none"
        )
    return order[: verb.contexts]


def _names(folders: Sequence[str]) -> dict[str, str]:
    """What each folder holds, in words; the folder itself beside it where that does not tell them apart."""
    names = {}
    for folder in folders:
        negatives = Negatives.open(folder)
        names[folder] = f"{negatives.manifest.generator.name}, {SIDES[negatives.config.side]}"
    are_different = len(set(names.values())) == len(names)
    return names if are_different else {folder: f"{name} ({folder})" for folder, name in names.items()}


def _error(values_B: Tensor) -> float:
    return float(values_B.std()) / math.sqrt(len(values_B))
