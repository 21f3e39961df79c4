"""What an energy starts from: trained weights of any encoder, or random weights of a named shape; and how it reads."""

from energylm.bundles.energy_model import EnergyModel, TextBoundEnergy
from energylm.config.energy import BIT, TEXT, TOKENS, UNIT
from energylm.config.models import PRESETS, TransformerShape
from energylm.config.pretrain import MASKED_PRESETS
from energylm.config.train_energy import TrainEnergyConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives_contrast import pad
from energylm.data.tokenizer import tokenizer_sha256
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ConfigError, ModelError, VocabularyMismatch
from energylm.models.masked_presets import build_masked_network
from energylm.models.presets import build_network
from energylm.training.energy_task import Encode
from energylm.training.seeding import seeded


def is_preset(init: str) -> bool:
    """Whether `init` names a shape, not weights."""
    return init in MASKED_PRESETS or init in PRESETS


def start_energy(config: TrainEnergyConfig, corpus: Corpus, *, length: int) -> EnergyModel:
    """The energy before training, checked against the texts of up to `length` tokens that it is to read."""
    if is_preset(config.init):
        energy = _from_preset(config, corpus, length=length)
    else:
        if config.network:
            raise ConfigError(
                f"network.{next(iter(config.network))} changes a preset, but the shape is {config.init}'s"
            )
        energy = EnergyModel.from_encoder(
            config.init,
            kind=config.kind,
            pooling=config.pooling,
            reads=config.reads,
            long_texts=config.long_texts,
            seed=config.training.seed,
            device="cpu",
        )
    if energy.reads == TOKENS:
        _check_tokens(energy, config, corpus, length=length)
    return energy


def encoding_for(energy: EnergyModel, corpus: Corpus) -> Encode:
    """How sequences of the corpus's tokens become what the energy reads: the way they will take in a joint model."""
    return pad if energy.reads == TOKENS else TextBoundEnergy(energy, corpus.tokenizer).encode


def _from_preset(config: TrainEnergyConfig, corpus: Corpus, *, length: int) -> EnergyModel:
    kind = BIT if config.init in MASKED_PRESETS else UNIT
    if config.kind not in (None, kind):
        near = ", ".join(MASKED_PRESETS if config.kind == BIT else PRESETS)
        raise ConfigError(f"the shape {config.init} is of kind {kind!r}, not {config.kind!r}; take one of: {near}")
    if config.reads == TEXT:
        raise ConfigError(
            f"{config.init} has no weights and no tokenizer of its own, so it reads the corpus's tokens; "
            "leave --reads out, or start from an encoder"
        )
    if kind == UNIT and not isinstance(PRESETS[config.init], TransformerShape):
        raise ConfigError(f"{config.init} is a convolution; energies are transformers: tiny, mini, bit-tiny, …")
    with seeded(config.training.seed, "initialisation"):
        if kind == BIT:
            network = build_masked_network(
                config.init,
                vocabulary_size=corpus.vocabulary_size,
                max_length=length,
                pad_token_id=corpus.tokenizer.pad_token_id,
                overrides=config.network,
            )
        else:
            network = build_network(
                config.init,
                vocabulary_size=corpus.vocabulary_size,
                max_length=length,
                eos_token_id=corpus.end_token_id,
                overrides=config.network,
            )
    pooled = PooledEnergy(network.base_model, kind=kind, pooling=config.pooling, seed=config.training.seed)
    return EnergyModel(pooled.eval(), corpus.tokenizer, name=config.init, provenance={"encoder": {"name": config.init}})


def _check_tokens(energy: EnergyModel, config: TrainEnergyConfig, corpus: Corpus, *, length: int) -> None:
    if tokenizer_sha256(energy.tokenizer) != corpus.manifest.tokenizer.sha256:
        raise VocabularyMismatch(
            f"{config.init} reads {len(energy.tokenizer):,} tokens of its own tokenizer, the corpus holds "
            f"{corpus.vocabulary_size:,} of another; pass --reads text, or start from a model of the corpus's tokenizer"
        )
    if energy.network.max_tokens is not None and length > energy.network.max_tokens:
        raise ModelError(
            f"{config.init} holds {energy.network.max_tokens} tokens, the negatives have {length}; start from an "
            "encoder with more positions, or generate shorter ones (--length)"
        )
