"""What an energy starts from: trained weights of any encoder, or random weights of a named shape; and how it reads."""

from typing import cast

from transformers import PreTrainedModel

from energylm.bundles.energy_model import EnergyModel, TextBoundEnergy
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
from energylm.data.contrast import pad
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import tokenizer_sha256
from energylm.energies.encoder_bodies import build_energy_body
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ConfigError, ModelError, VocabularyMismatch
from energylm.models.cloze_presets import build_masked_network
from energylm.models.presets import build_network
from energylm.randomness import seeded
from energylm.training.energy_task import Encode
from energylm.verbs.joint.train_energy import TrainEnergy


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
