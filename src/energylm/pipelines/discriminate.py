"""Judge an energy on generated texts beside the real ones: a cell of a generalization grid.

Energies are read as a score, higher = machine, with the calibrated threshold 0. Where the texts are in tokens that the
energy does not read (a third-party generator has its own tokenizer), real and generated ones alike are decoded and
encoded anew. Test windows that stand in what the energy learnt from are found by hashes of their tokens: a few are left
out and counted (news repeat themselves), many are refused.

OUTPUT/discrimination.json   all measures with intervals, counts, and accuracy by length of the given context
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energylm.bundles.energy_model import EnergyModel, TextBoundEnergy
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.log_likelihood_energy import LogLikelihoodEnergy, load_energy
from energylm.config.energy import TOKENS
from energylm.config.grid import DiscriminationConfig, LikelihoodConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, pad
from energylm.data.negatives_sources import NegativesSource, paired_sources
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.window_overlap import SeenWindows
from energylm.errors import DataError, VocabularyMismatch
from energylm.estimators.discrimination import Discrimination, discrimination
from energylm.files import write_json
from energylm.progress import progress, say

RESULT_FILE = "discrimination.json"
TOLERATED_OVERLAP = 0.05  # of test windows; more is a mistake in the choice of texts, not chance
_BATCH_CONTEXTS = 64
Energy = EnergyModel | LogLikelihoodEnergy
_WINDOW_BITS = 40  # of a group's number; the bits above tell corpora apart


@dataclass(frozen=True)
class LengthMeasures:
    """How well texts with so many tokens of real context are told apart."""

    context_tokens: int
    measured: Discrimination


@dataclass(frozen=True)
class DiscriminationRun:
    measured: Discrimination
    by_context: tuple[LengthMeasures, ...]  # where context lengths vary
    overlapping: int  # test windows left out, since the energy has learnt from them

    def to_json(self) -> dict[str, Any]:
        """Numbers by short names for reports and claims, and everything under `measured`."""
        accuracy = self.measured.balanced_accuracy
        found: dict[str, Any] = {
            "accuracy": accuracy.value,
            "lower": accuracy.lower,
            "upper": accuracy.upper,
            "auroc": self.measured.auroc.value,
            "tpr_at_1": self.measured.tpr_at_1 and self.measured.tpr_at_1.value,
            "tpr_at_5": self.measured.tpr_at_5 and self.measured.tpr_at_5.value,
            "texts": self.measured.real_groups,
            "overlapping": self.overlapping,
            "measured": self.measured.to_json(),
        }
        if self.by_context:
            accuracies = [one.measured.balanced_accuracy for one in self.by_context]
            found["by_context"] = {
                "context_tokens": [one.context_tokens for one in self.by_context],
                "accuracy": [one.value for one in accuracies],
                "lower": [one.lower for one in accuracies],
                "upper": [one.upper for one in accuracies],
                "auroc": [one.measured.auroc.value for one in self.by_context],
            }
        return found


@dataclass(frozen=True)
class TextEnergies:
    """Energies of N contexts with their real text and K generated ones each."""

    real_N: NDArray[np.float64]
    machine_NK: NDArray[np.float64]
    window_N: NDArray[np.int64]
    context_tokens_N: NDArray[np.int64]


def discriminate(config: DiscriminationConfig, *, output: Path | None = None) -> DiscriminationRun:
    """Measure the energy on all texts of the negatives; with `output`, write the result there."""
    energy = load_energy(config.energy)
    sources = paired_sources(config.negatives, config.corpus)
    kept, overlapping = _unseen_rows(config, sources)
    parts = [
        text_energies(energy, negatives, corpus, rows=rows)
        for (negatives, corpus), rows in zip(sources, kept, strict=True)
    ]
    groups = [part.window_N + (number << _WINDOW_BITS) for number, part in zip(_texts_of(sources), parts, strict=True)]
    real_N = np.concatenate([part.real_N for part in parts])
    machine_M = np.concatenate([part.machine_NK.ravel() for part in parts])
    real_group_N = np.concatenate(groups)
    machine_group_M = np.concatenate(
        [of.repeat(part.machine_NK.shape[1]) for of, part in zip(groups, parts, strict=True)]
    )
    real_cut_N = np.concatenate([part.context_tokens_N for part in parts])
    machine_cut_M = np.concatenate([part.context_tokens_N.repeat(part.machine_NK.shape[1]) for part in parts])

    def measure(real: NDArray[np.bool_], machine: NDArray[np.bool_]) -> Discrimination:
        return discrimination(
            real_N[real],
            machine_M[machine],
            real_groups=real_group_N[real],
            machine_groups=machine_group_M[machine],
            resamples=config.resamples,
            seed=config.seed,
        )

    cuts = np.unique(real_cut_N)
    by_context = [LengthMeasures(int(cut), measure(real_cut_N == cut, machine_cut_M == cut)) for cut in cuts]
    everything = measure(np.ones_like(real_cut_N, bool), np.ones_like(machine_cut_M, bool))
    run = DiscriminationRun(everything, tuple(by_context) if len(cuts) > 1 else (), overlapping)
    if output is not None:
        write_json(output / RESULT_FILE, run.to_json())
    return run


def fit_likelihood(config: LikelihoodConfig, *, output: Path) -> LogLikelihoodEnergy:
    """The language model's log-likelihood as an energy, saved as `output`, with the sign and threshold that tell these
    validation texts apart best."""
    energy = LogLikelihoodEnergy(LanguageModel.from_pretrained(config.lm))
    real, machine = [], []
    for negatives, corpus in paired_sources(config.negatives, config.corpus):
        if tokenizer_sha256(energy.tokenizer) != corpus.manifest.tokenizer.sha256:
            raise VocabularyMismatch(
                f"{config.lm} reads other tokens than {corpus.folder} holds; give the language model that wrote "
                f"{negatives.folder}, or one of its tokenizer"
            )
        contrast = Contrast(negatives, corpus)
        contexts = np.arange(len(contrast), dtype=np.int64)
        sequences = contrast.sequences(contexts, np.tile(np.arange(contrast.k), (len(contrast), 1)))
        real += sequences[:: 1 + contrast.k]
        machine += [text for place, text in enumerate(sequences) if place % (1 + contrast.k)]
    fitted = energy.fitted(pad(real), pad(machine))
    fitted.save_pretrained(output)
    return fitted


@torch.no_grad()
def text_energies(
    energy: Energy, negatives: Negatives, corpus: Corpus, *, rows: NDArray[np.int64] | None = None
) -> TextEnergies:
    """Energies of the real and the generated texts of some rows (default: all) of a negatives folder."""
    contrast = Contrast(negatives, corpus, rows=rows)
    energies_of = _reading(energy, corpus)
    copies_K = np.arange(contrast.k, dtype=np.int64)
    parts = []
    with progress("judging", total=len(contrast), unit="text") as bar:
        for start in range(0, len(contrast), _BATCH_CONTEXTS):
            chosen = np.arange(start, min(start + _BATCH_CONTEXTS, len(contrast)), dtype=np.int64)
            sequences = contrast.sequences(chosen, np.tile(copies_K, (len(chosen), 1)))
            parts.append(energies_of(sequences).reshape(len(chosen), 1 + contrast.k))
            bar.advance(len(chosen))
    energy_NJ = np.concatenate(parts) if parts else np.zeros((0, 1 + contrast.k))
    given = negatives.rows(contrast.rows)
    return TextEnergies(energy_NJ[:, 0], energy_NJ[:, 1:], given.window_B, given.context_length_B)


def _reading(energy: Energy, corpus: Corpus) -> Callable[[Sequence[Sequence[int]]], NDArray[np.float64]]:
    """Token sequences of the corpus -> energies, by ids where the energy reads these, else by text."""
    reads_ids = energy.reads == TOKENS and tokenizer_sha256(energy.tokenizer) == corpus.manifest.tokenizer.sha256
    encode = pad if reads_ids else TextBoundEnergy(energy, corpus.tokenizer).encode

    def energies(sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        return energy.energies(*encode(sequences)).double().cpu().numpy()

    return energies


def _texts_of(sources: Sequence[NegativesSource]) -> list[int]:
    """A number for each source; sources that cut the same texts into the same windows have the same."""
    forms = []
    for negatives, corpus in sources:
        own = negatives.config
        forms.append((corpus.manifest.identity, own.split, own.length, own.stride or own.length, own.documents))
    return [forms.index(form) for form in forms]


def _unseen_rows(
    config: DiscriminationConfig, sources: Sequence[NegativesSource]
) -> tuple[list[NDArray[np.int64]], int]:
    """Of each source the rows whose window the energy has not learnt from, and how many were left out."""
    all_rows = [np.arange(len(negatives), dtype=np.int64) for negatives, _ in sources]
    if not config.trained_on:
        return all_rows, 0
    learnt = paired_sources(config.trained_on, config.trained_on_corpus)
    reader = learnt[0][1]  # all of them share its tokenizer
    seen = SeenWindows([window for negatives, corpus in learnt for window in _windows(negatives, corpus)])
    kept = [
        rows[~seen.contains(_as_tokens_of(reader, corpus, list(_windows(negatives, corpus))))]
        for rows, (negatives, corpus) in zip(all_rows, sources, strict=True)
    ]
    total, left_out = sum(map(len, all_rows)), sum(map(len, all_rows)) - sum(map(len, kept))
    if left_out > TOLERATED_OVERLAP * total:
        raise DataError(
            f"{left_out:,} of {total:,} test texts of {', '.join(config.negatives)} stand in the texts that the energy "
            "learnt from (found by hashes of their tokens); test on another split, or on another corpus"
        )
    if left_out:
        say(f"{left_out:,} of {total:,} test texts stand in the training texts, too; they are left out")
    return kept, left_out


def _windows(negatives: Negatives, corpus: Corpus) -> Iterator[NDArray[np.int64]]:
    """The real texts of all rows."""
    yield from negatives.corpus_windows(corpus).gather(negatives.windows)


def _as_tokens_of(
    reader: Corpus, corpus: Corpus, windows: Sequence[NDArray[np.int64]]
) -> Sequence[NDArray[np.int64]] | list[list[int]]:
    """Windows in the tokens of the corpus `reader`."""
    if corpus.manifest.tokenizer.sha256 == reader.manifest.tokenizer.sha256:
        return windows
    texts = corpus.tokenizer.backend_tokenizer.decode_batch([window.tolist() for window in windows])
    return [encoding.ids for encoding in reader.tokenizer.backend_tokenizer.encode_batch(texts)]
