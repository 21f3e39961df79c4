"""What an energy is trained from: the contexts that it learns from, is reported and calibrated on; and its start.

No context is in two of the three. Which context serves what is decided by a hash of its window's number. Sources of one
corpus and split have the same windows (else they are refused), so a window that is held out of one is held out of all.

An energy starts from trained weights of any encoder, or from random weights of a named shape. `fit_value` reads
negatives again, cut short, for what a trained energy is worth on unfinished texts (`energylm energy value`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from energylm.bundles.compatibility import bound_energy
from energylm.bundles.energy_binding import energies_and_states
from energylm.bundles.energy_model import EnergyModel, TextBoundEnergy
from energylm.bundles.joint_texts import Context
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.bundles.text_energy import Energy
from energylm.config.models import (
    BIT,
    ENERGY_PRESETS,
    PRESETS,
    TEXT,
    TOKENS,
    UNIT,
    EnergyKind,
    TransformerShape,
    preset_kind,
)
from energylm.config.pretrain import MASKED_PRESETS
from energylm.data.contrast import Contrast, ContrastUnion, by_window, pad, split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives, NegativesSource, open_negatives_sources
from energylm.data.tokenizer import tokenizer_sha256
from energylm.energies.encoder_bodies import build_energy_body
from energylm.energies.pooled import PooledEnergy
from energylm.energies.prefix_value import PrefixValue, fit_prefix_value
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.models.cloze_presets import build_masked_network
from energylm.models.presets import build_network
from energylm.progress import progress
from energylm.randomness import seeded
from energylm.training.energy_task import Encode
from energylm.verbs.joint.train_energy import FitValue, TrainEnergy

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

    @property
    def is_untruncated(self) -> bool:
        """Whether every negative was drawn from a language model as it is."""
        sources = (*self.sources, *self.validation)
        return all(source.negatives.config.truncation.is_identity for source in sources)


def open_data(verb: TrainEnergy) -> EnergyData:
    """Open and check everything."""
    sources = _open_training(verb)
    if verb.validation is None:
        _refuse_overlap_within(sources)
        validation: tuple[NegativesSource, ...] = ()
        reported = sources
        fraction = verb.validation_fraction
        held_out = [
            by_window(source.negatives.windows, fraction=fraction, purpose="validation contexts") for source in sources
        ]
        train_rows, rows = [np.flatnonzero(~mask) for mask in held_out], [np.flatnonzero(mask) for mask in held_out]
    else:
        validation = reported = _open_validation(verb, sources)
        train_rows = [np.arange(len(source.negatives)) for source in sources]
        rows = [np.arange(len(source.negatives)) for source in reported]
    _refuse_overlap_between(reported, holds_out=verb.validation is None)
    rows = _spread(rows, at_most=verb.validation_contexts)
    report_rows, calibration_rows = [], []
    for source, own in zip(reported, rows, strict=True):
        calibrates = by_window(source.negatives.windows[own], fraction=0.5, purpose="calibration contexts")
        report_rows.append(own[~calibrates])
        calibration_rows.append(own[calibrates])
    data = EnergyData(
        sources=sources,
        validation=validation,
        train=_union(sources, train_rows),
        report=_union(reported, report_rows),
        calibration=_union(reported, calibration_rows),
    )
    parts = {"train": data.train, "report": data.report, "calibration": data.calibration}
    for purpose, chosen in parts.items():
        if not len(chosen):
            counts = ", ".join(f"{name} {len(part)}" for name, part in parts.items())
            raise DataError(
                f"no context is left for {purpose} ({counts}); generate more contexts, or change validation_fraction "
                "or validation_contexts"
            )
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
    corpus_folders = []
    for folder in folders:
        negatives = Negatives.open(folder)
        identity = negatives.manifest.corpus.identity
        if negatives.manifest.generator.sha256 not in writers:
            negatives.check(generator_sha256=sources[0].negatives.manifest.generator.sha256)
        for other, corpus in sources:
            if corpus.manifest.identity == identity and other.config.split == negatives.config.split:
                raise DataError(
                    f"{folder} and {other.folder} both continue texts of split {negatives.config.split!r}; "
                    "validate on another split, or leave --validation out to hold some contexts out"
                )
        corpus_folders.append(corpora.get(identity, sources[0].corpus).folder)
    return open_negatives_sources(folders, corpus_folders)


def _refuse_overlap_within(sources: Sequence[NegativesSource]) -> None:
    for negatives, _ in sources:
        settings = negatives.config
        if settings.stride is not None and settings.stride < settings.length:
            raise ConfigError(
                f"the windows of {negatives.folder} overlap (stride {settings.stride}, length {settings.length}), so "
                "contexts held out of them would have been seen; give negatives of another split with --validation"
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
    settings = negatives.config
    return settings.length, settings.stride or settings.length, settings.documents


def _spread(rows: Sequence[Rows], *, at_most: int | None) -> list[Rows]:
    """At most so many rows of all sources together, evenly spread, so that each keeps its share."""
    begins = np.cumsum([0, *map(len, rows)])
    total = int(begins[-1])
    if at_most is None or total <= at_most:
        return list(rows)
    kept = np.arange(at_most) * total // at_most
    return [
        own[kept[(begin <= kept) & (kept < end)] - begin]
        for own, begin, end in zip(rows, begins, begins[1:], strict=False)
    ]


def _union(sources: Sequence[NegativesSource], rows: Sequence[Rows]) -> ContrastUnion:
    return ContrastUnion([Contrast(*source, rows=own) for source, own in zip(sources, rows, strict=True)])


def is_preset(init: str) -> bool:
    """Whether `init` names a shape, not weights."""
    return any(init in presets for presets in (PRESETS, MASKED_PRESETS, ENERGY_PRESETS))


def start_energy(verb: TrainEnergy, corpus: Corpus, *, length: int) -> EnergyModel:
    """The energy before training, checked against the texts of up to `length` tokens that it is to read."""
    if is_preset(verb.init):
        energy = _from_preset(verb, corpus, length=length)
    else:
        if verb.network:
            raise ConfigError(f"network.{next(iter(verb.network))} changes a preset, but the shape is {verb.init}'s")
        energy = EnergyModel.from_encoder(
            verb.init,
            kind=verb.kind,
            pooling=verb.pooling,
            reads=verb.reads,
            long_texts=verb.long_texts,
            seed=verb.training.seed,
            device="cpu",
        )
    if energy.reads == TOKENS:
        _check_tokens(energy, verb, corpus, length=length)
    return energy


def encoding_for(energy: EnergyModel, corpus: Corpus) -> Encode:
    """How sequences of the corpus's tokens become what the energy reads: the way they will take in a joint model."""
    return pad if energy.reads == TOKENS else TextBoundEnergy(energy, corpus.tokenizer).encode


def _from_preset(verb: TrainEnergy, corpus: Corpus, *, length: int) -> EnergyModel:
    kinds = _preset_kinds()
    if verb.init not in kinds:
        raise ConfigError(f"{verb.init} is a convolution, which is no energy; take one of: {', '.join(kinds)}")
    kind = kinds[verb.init]
    if verb.kind not in (None, kind):
        near = ", ".join(name for name in kinds if kinds[name] == verb.kind)
        raise ConfigError(f"the shape {verb.init} is of kind {kind!r}, not {verb.kind!r}; take one of: {near}")
    if verb.reads == TEXT:
        raise ConfigError(
            f"{verb.init} has no weights and no tokenizer of its own, so it reads the corpus's tokens; "
            "leave --reads out, or start from an encoder"
        )
    with seeded(verb.training.seed, "initialisation"):
        body = _random_body(verb, kind, corpus, length=length)
    pooled = PooledEnergy(body, kind=kind, pooling=verb.pooling, seed=verb.training.seed)
    return EnergyModel(
        pooled.eval(),
        corpus.tokenizer,
        long_texts=verb.long_texts,
        name=verb.init,
        provenance={"encoder": {"name": verb.init}},
    )


def _preset_kinds() -> dict[str, EnergyKind]:
    """Every shape that an energy can have, and of which kind it is."""
    causal = [name for name, shape in PRESETS.items() if isinstance(shape, TransformerShape)]
    return (
        dict.fromkeys(causal, UNIT)
        | dict.fromkeys(MASKED_PRESETS, BIT)
        | {name: preset_kind(name) for name in ENERGY_PRESETS}
    )


def _random_body(verb: TrainEnergy, kind: EnergyKind, corpus: Corpus, *, length: int) -> PreTrainedModel:
    size = corpus.vocabulary_size
    if kind == UNIT:
        network = build_network(
            verb.init,
            vocabulary_size=size,
            max_length=length,
            eos_token_id=corpus.end_token_id,
            overrides=verb.network,
        )
    elif kind == BIT:
        network = build_masked_network(
            verb.init,
            vocabulary_size=size,
            max_length=length,
            pad_token_id=corpus.tokenizer.pad_token_id,
            overrides=verb.network,
        )
    else:
        return build_energy_body(verb.init, vocabulary_size=size, overrides=verb.network)
    return cast(PreTrainedModel, network.base_model)


def _check_tokens(energy: EnergyModel, verb: TrainEnergy, corpus: Corpus, *, length: int) -> None:
    if tokenizer_sha256(energy.tokenizer) != corpus.manifest.tokenizer.sha256:
        raise VocabularyMismatch(
            f"{verb.init} reads {len(energy.tokenizer):,} tokens of its own tokenizer, the corpus holds "
            f"{corpus.vocabulary_size:,} of another; pass --reads text, or start from a model of the corpus's tokenizer"
        )
    if energy.network.max_tokens is not None and length > energy.network.max_tokens:
        raise ModelError(
            f"{verb.init} holds {energy.network.max_tokens} tokens, the negatives have {length}; start from an "
            "encoder with more positions, or generate shorter ones (--length)"
        )


def fit_value(verb: FitValue, output: Path) -> PrefixValue:
    """Write OUTPUT/value.json."""
    (source,) = open_negatives_sources([verb.negatives], [verb.corpus])
    negatives, config = source.negatives, source.negatives.config
    if config.side != "suffix" or not config.truncation.is_identity:
        raise ConfigError(
            f"{verb.negatives} holds {config.side}es drawn with {config.truncation}; a value needs continuations that "
            "the language model wrote as it is: make negatives without truncation"
        )
    lm = LanguageModel.from_pretrained(verb.language_model)
    energy = bound_energy(Energy.load(verb.energy, beta=verb.beta), lm)
    rows = negatives.rows(np.arange(min(verb.contexts, len(negatives))))
    windows_BT = negatives.corpus_windows(source.corpus).gather(rows.window_B)
    given = [ids.tolist() for ids in split_affix(windows_BT, rows.context_length_B, side="suffix").contexts]
    tokens_BKT, lengths_BK = torch.from_numpy(rows.tokens_BKT).long(), torch.from_numpy(rows.length_BK).long()
    new_tokens = verb.max_new_tokens or tokens_BKT.shape[2]
    if new_tokens > tokens_BKT.shape[2]:
        raise ConfigError(
            f"max_new_tokens is {new_tokens}, but the negatives of {verb.negatives} have {tokens_BKT.shape[2]} tokens; "
            "ask for fewer, or make longer ones"
        )
    cut_J = torch.arange(1, verb.cuts + 2).mul(new_tokens).div(verb.cuts + 1).ceil().long().unique()
    energies, states = [], []
    with progress("reading negatives", total=len(given) * len(cut_J), unit="cut") as bar:
        for ids, tokens_KT, lengths_K in zip(given, tokens_BKT, lengths_BK, strict=True):
            readings = []
            for cut in cut_J:
                shortened_1K = lengths_K.clamp(max=cut)[None]
                readings.append(energies_and_states(energy, [Context(ids, ids)], tokens_KT[None], shortened_1K))
                bar.advance()
            energies.append(torch.stack([energy_1K[0] for energy_1K, _ in readings], dim=-1))
            states.append([states_1KD[0] for _, states_1KD in readings[:-1] if states_1KD is not None])
    energy_BKJ = torch.stack(energies)
    value = fit_prefix_value(
        energy_BKJ[..., :-1],
        torch.stack([torch.stack(of_context, dim=1) for of_context in states]) if states[0] else None,
        lengths_BK[..., None] > cut_J[:-1],
        cut_J[:-1] / new_tokens,
        energy_BKJ[..., -1],
    )
    output.mkdir(parents=True, exist_ok=True)
    value.save(output)
    return value
