"""The contexts of an energy's training: learnt from, reported, calibrated on; no context is in two of them.

Which context serves what is decided by a hash of its window's number. Sources of one corpus and split have the same
windows (else they are refused), so a window that is held out of one is held out of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.model_folder import weights_sha256
from energylm.data.contrast import Contrast, ContrastUnion, by_window
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives, NegativesSource, open_negatives_sources
from energylm.errors import ConfigError, DataError
from energylm.verbs.joint.train_energy import TrainEnergy

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class EnergyData:
    sources: tuple[NegativesSource, ...]  # learnt from
    validation: tuple[NegativesSource, ...]  # folders of their own, if there are any
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


def open_data(verb: TrainEnergy) -> EnergyData:
    """Open and check everything."""
    sources = _open_training(verb)
    if verb.validation is None:
        _refuse_overlap_within(sources)
        validation: tuple[NegativesSource, ...] = ()
        judged = sources
        held_out = [_held_out(source, verb) for source in sources]
        train_rows, rows = [np.flatnonzero(~of) for of in held_out], [np.flatnonzero(of) for of in held_out]
    else:
        validation = judged = _open_validation(verb, sources)
        train_rows = [np.arange(len(source.negatives)) for source in sources]
        rows = [np.arange(len(source.negatives)) for source in judged]
    _refuse_overlap_between(judged, holds_out=verb.validation is None)
    rows = _spread(rows, at_most=verb.validation_contexts)
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


def _open_training(verb: TrainEnergy) -> tuple[NegativesSource, ...]:
    sources = open_negatives_sources(verb.negatives, verb.corpus)
    generator_sha256 = None if verb.language_model is None else weights_sha256(verb.language_model)
    for negatives, _ in sources:
        negatives.check(generator_sha256=generator_sha256)
        if verb.negatives_per_context > negatives.k:
            raise ConfigError(
                f"negatives_per_context is {verb.negatives_per_context}, but {negatives.folder} holds {negatives.k} "
                "of each context; ask for fewer, or generate more (-k)"
            )
    return sources


def _open_validation(verb: TrainEnergy, sources: Sequence[NegativesSource]) -> tuple[NegativesSource, ...]:
    """Each folder on the corpus of some training folder, by one of the training generators, of another split."""
    folders = verb.validation or ()
    corpora = {source.corpus.manifest.identity: source.corpus for source in sources}
    writers = {source.negatives.manifest.generator.sha256 for source in sources}
    of_each = []
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
        of_each.append(corpora.get(identity, sources[0].corpus).folder)
    return open_negatives_sources(folders, of_each)


def _held_out(source: NegativesSource, verb: TrainEnergy) -> NDArray[np.bool_]:
    return by_window(source.negatives.windows, fraction=verb.validation_fraction, purpose="validation contexts")


def _refuse_overlap_within(sources: Sequence[NegativesSource]) -> None:
    for negatives, _ in sources:
        own = negatives.config
        if own.stride is not None and own.stride < own.length:
            raise ConfigError(
                f"the windows of {negatives.folder} overlap (stride {own.stride}, length {own.length}), so contexts "
                "held out of them would have been seen; give negatives of another split with --validation"
            )


def _refuse_overlap_between(sources: Sequence[NegativesSource], *, holds_out: bool) -> None:
    """What is held out of one source must not stand in another under another number."""
    cure = "give negatives of another split with --validation" if holds_out else "validate on windows of one form"
    for first, second in combinations(sources, 2):
        corpus, other = first.corpus.manifest, second.corpus.manifest
        pair = f"{first.negatives.folder} and {second.negatives.folder}"
        if corpus.identity == other.identity:
            same_split = first.negatives.config.split == second.negatives.config.split
            if same_split and _form(first.negatives) != _form(second.negatives):
                raise ConfigError(
                    f"{pair} cut the same texts into different windows (length, stride or documents), so what is held "
                    f"out of one would be seen in the other; make them alike, or {cure}"
                )
        elif holds_out and {file.sha256 for file in corpus.sources} & {file.sha256 for file in other.sources}:
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


def _union(sources: Sequence[NegativesSource], rows: Sequence[Rows]) -> ContrastUnion:
    return ContrastUnion([Contrast(*source, rows=of) for source, of in zip(sources, rows, strict=True)])


def _refuse_empty(**parts: ContrastUnion) -> None:
    for purpose, chosen in parts.items():
        if not len(chosen):
            counts = ", ".join(f"{name} {len(of)}" for name, of in parts.items())
            raise DataError(
                f"no context is left for {purpose} ({counts}); generate more contexts, or change validation_fraction "
                "or validation_contexts"
            )
