"""The contexts of an energy's training: learnt from, reported, calibrated on; no context is in two of them.

Which context serves what is decided by a hash of its window's number. Sources of one corpus and split have the same
windows (else they are refused), so a window that is held out of one is held out of all.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.weights_identity import weights_sha256
from energylm.config.train_energy import TrainEnergyConfig
from energylm.data.contrast_union import ContrastUnion
from energylm.data.corpus import Corpus
from energylm.data.manifest import TOKENIZER_FOLDER
from energylm.data.negatives import Negatives
from energylm.data.negatives_contrast import Contrast, by_window
from energylm.errors import ConfigError, DataError, VocabularyMismatch

Rows = NDArray[np.int64]


class Source(NamedTuple):
    """Negatives, and the corpus of their real texts."""

    negatives: Negatives
    corpus: Corpus


@dataclass(frozen=True)
class EnergyData:
    sources: tuple[Source, ...]  # learnt from
    validation: tuple[Source, ...]  # folders of their own, if there are any
    train: ContrastUnion
    report: ContrastUnion  # chooses the best step, and is what reports tell
    calibration: ContrastUnion  # for scale and shift alone

    @property
    def corpus(self) -> Corpus:
        """The first corpus; its tokenizer is everyone's."""
        return self.sources[0].corpus

    @property
    def length(self) -> int:
        """Tokens of the longest window."""
        return max(source.negatives.config.length for source in (*self.sources, *self.validation))


def open_data(config: TrainEnergyConfig) -> EnergyData:
    """Open and check everything."""
    sources = _open_training(config)
    if config.validation is None:
        _refuse_overlap_within(sources)
        validation, judged = (), sources
        held_out = [_held_out(source, config) for source in sources]
        train_rows, rows = [np.flatnonzero(~of) for of in held_out], [np.flatnonzero(of) for of in held_out]
    else:
        validation = judged = _open_validation(config, sources)
        train_rows = [np.arange(len(source.negatives)) for source in sources]
        rows = [np.arange(len(source.negatives)) for source in judged]
    _refuse_overlap_between(judged, holds_out=config.validation is None)
    rows = _spread(rows, at_most=config.validation_contexts)
    calibrates = [
        by_window(source.negatives.windows[of], fraction=0.5, purpose="calibration contexts")
        for source, of in zip(judged, rows, strict=True)
    ]
    data = EnergyData(
        sources=sources,
        validation=validation,
        train=_union(sources, train_rows),
        report=_union(judged, [of[~chosen] for of, chosen in zip(rows, calibrates, strict=True)]),
        calibration=_union(judged, [of[chosen] for of, chosen in zip(rows, calibrates, strict=True)]),
    )
    _refuse_empty(train=data.train, report=data.report, calibration=data.calibration)
    return data


def open_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[Source, ...]:
    """Different folders of negatives, each with the corpus that they were made from, all of one tokenizer."""
    sources = paired_sources(negatives, corpora)
    opened = [source.corpus for source in sources]
    for corpus in opened[1:]:
        if corpus.manifest.tokenizer.sha256 != opened[0].manifest.tokenizer.sha256:
            raise VocabularyMismatch(
                f"the corpora {opened[0].folder} and {corpus.folder} have different tokenizers, but one energy reads "
                "one; build the second, and then its negatives, with "
                f"--tokenizer {shlex.quote(str(opened[0].folder / TOKENIZER_FOLDER))}"
            )
    for source in sources:
        source.negatives.check(corpus=source.corpus)
    for first, second in combinations([source.negatives for source in sources], 2):
        if first.manifest.identity == second.manifest.identity:
            raise ConfigError(f"{first.folder} and {second.folder} are the same negatives; name them once")
    return sources


def paired_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[Source, ...]:
    """Folders of negatives with the corpus of each (or one for all)."""
    if len(corpora) not in (1, len(negatives)):
        raise ConfigError(
            f"{len(corpora)} corpora came for {len(negatives)} folders of negatives; give one for all, or one for each "
            "in the same order"
        )
    opened = {folder: Corpus.open(folder) for folder in corpora}
    of_each = corpora if len(corpora) == len(negatives) else list(corpora) * len(negatives)
    return tuple(Source(Negatives.open(one), opened[corpus]) for one, corpus in zip(negatives, of_each, strict=True))


def _open_training(config: TrainEnergyConfig) -> tuple[Source, ...]:
    sources = open_sources(config.negatives, config.corpus)
    generator_sha256 = None if config.lm is None else weights_sha256(config.lm)
    for negatives, _ in sources:
        negatives.check(generator_sha256=generator_sha256)
        if config.negatives_per_context > negatives.k:
            raise ConfigError(
                f"negatives_per_context is {config.negatives_per_context}, but {negatives.folder} holds {negatives.k} "
                "of each context; ask for fewer, or generate more (-k)"
            )
    return sources


def _open_validation(config: TrainEnergyConfig, sources: Sequence[Source]) -> tuple[Source, ...]:
    """Each folder on the corpus of some training folder, by one of the training generators, of another split."""
    folders = config.validation or ()
    corpora = {one.corpus.manifest.identity: one.corpus for one in sources}
    writers = {one.negatives.manifest.generator.sha256 for one in sources}
    places = []
    for folder in folders:
        negatives = Negatives.open(folder)
        identity = negatives.manifest.corpus.identity
        if negatives.manifest.generator.sha256 not in writers:
            negatives.check(generator_sha256=sources[0].negatives.manifest.generator.sha256)
        for other, of in sources:
            if of.manifest.identity == identity and other.config.split == negatives.config.split:
                raise DataError(
                    f"{folder} and {other.folder} both continue texts of split {negatives.config.split!r}; "
                    "validate on another split, or leave --validation out to hold some contexts out"
                )
        places.append(corpora.get(identity, sources[0].corpus).folder)
    return open_sources(folders, places)


def _held_out(source: Source, config: TrainEnergyConfig) -> NDArray[np.bool_]:
    return by_window(source.negatives.windows, fraction=config.validation_fraction, purpose="validation contexts")


def _refuse_overlap_within(sources: Sequence[Source]) -> None:
    for negatives, _ in sources:
        own = negatives.config
        if own.stride is not None and own.stride < own.length:
            raise ConfigError(
                f"the windows of {negatives.folder} overlap (stride {own.stride}, length {own.length}), so contexts "
                "held out of them would have been seen; give negatives of another split with --validation"
            )


def _refuse_overlap_between(sources: Sequence[Source], *, holds_out: bool) -> None:
    """What is held out of one source must not stand in another under another number."""
    cure = "give negatives of another split with --validation" if holds_out else "validate on windows of one form"
    for first, second in combinations(sources, 2):
        one, other = first.corpus.manifest, second.corpus.manifest
        pair = f"{first.negatives.folder} and {second.negatives.folder}"
        if one.identity == other.identity:
            same_split = first.negatives.config.split == second.negatives.config.split
            if same_split and _form(first.negatives) != _form(second.negatives):
                raise ConfigError(
                    f"{pair} cut the same texts into different windows (length, stride or documents), so what is held "
                    f"out of one would be seen in the other; make them alike, or {cure}"
                )
        elif holds_out and {file.sha256 for file in one.sources} & {file.sha256 for file in other.sources}:
            raise ConfigError(
                f"the corpora of {pair} share a source file, so what is held out of one would be seen in the other; "
                f"{cure}"
            )


def _form(negatives: Negatives) -> tuple[int, int, str]:
    own = negatives.config
    return own.length, own.stride or own.length, own.documents


def _spread(rows: Sequence[Rows], *, at_most: int | None) -> list[Rows]:
    """At most so many rows of all sources together, evenly spread, so that each keeps its share."""
    begins = np.cumsum([0, *map(len, rows)])
    total = int(begins[-1])
    if at_most is None or total <= at_most:
        return list(rows)
    kept = np.arange(at_most) * total // at_most
    return [
        of[kept[(begin <= kept) & (kept < end)] - begin]
        for of, begin, end in zip(rows, begins, begins[1:], strict=False)
    ]


def _union(sources: Sequence[Source], rows: Sequence[Rows]) -> ContrastUnion:
    return ContrastUnion([Contrast(*source, rows=of) for source, of in zip(sources, rows, strict=True)])


def _refuse_empty(**parts: ContrastUnion) -> None:
    for purpose, chosen in parts.items():
        if not len(chosen):
            counts = ", ".join(f"{name} {len(of)}" for name, of in parts.items())
            raise DataError(
                f"no context is left for {purpose} ({counts}); generate more contexts, or change validation_fraction "
                "or validation_contexts"
            )
