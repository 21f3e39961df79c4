"""What `energylm energy train` makes: an energy from which encoder, against which negatives, trained how."""

from typing import Any, Literal

from pydantic import Field

from energylm.config.base import Config
from energylm.config.energy import MEAN, NCE, REFUSE, TOKENS, EnergyKind, LongTexts, Pooling, Reads
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig


class EnergyOptimizer(OptimizerConfig):
    """AdamW for networks that mostly start from trained weights."""

    learning_rate: float = Field(
        1e-4, gt=0, description="The highest learning rate (deng2020: 3e-4 for UniT, 5e-5 for BiT-base)."
    )


class EnergyValidation(ValidationConfig):
    """Energies overfit within a few hundred steps, so they are looked at more often than language models."""

    every_steps: int | None = Field(100, ge=1, description="Validate this often, and after the last step.")


class EnergyCheckpoints(CheckpointConfig):
    every_steps: int = Field(100, ge=1, description="Write a checkpoint this often, and after the last step.")


class EnergyTraining(TrainingConfig):
    """As for any model; a sequence of `global_batch` is a context with its real continuation and its negatives."""

    optimizer: EnergyOptimizer = EnergyOptimizer()
    validation: EnergyValidation = EnergyValidation()
    checkpoint: EnergyCheckpoints = EnergyCheckpoints()


class TrainEnergyConfig(Config):
    """An energy trained to tell the texts of a corpus from a language model's."""

    negatives: str = Field(description="The folder of generated continuations, made by `energylm negatives`.")
    corpus: str = Field(description="The corpus folder that they were made from: the real continuations.")
    init: str = Field(
        description="What the energy starts from: a folder of a language model, masked model or encoder, a known model "
        "such as minilm-l6, a hub name; or random weights of a shape: tiny, mini, … (causal), bit-tiny, bit-base, …"
    )
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    kind: EnergyKind | None = Field(
        None, description="unit (causal) or bit (bidirectional): checks that `init` is what was meant."
    )
    pooling: Pooling = Field(MEAN, description="mean over all tokens (deng2020) or the first position (bakhtin2019).")
    reads: Reads = Field(
        TOKENS, description="tokens: the corpus's own ids; text: decoded and encoded again, for any other encoder."
    )
    long_texts: LongTexts = Field(REFUSE, description="Text longer than the encoder: refuse it, or cut-left.")
    lm: str | None = Field(None, description="Refuse negatives that this language model did not write.")
    objective: Literal["nce"] = Field(NCE, description="The loss: nce (deng2020 eq. 3) gives log-ratios.")
    negatives_per_context: int = Field(
        1, ge=1, description="Negatives of each context in a batch, a fresh choice each epoch (eq. 3: 1)."
    )
    validation: str | None = Field(
        None, description="Negatives of another split to validate on; none = hold some contexts out."
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="Without `validation`: the share of contexts held out, by a hash of their windows."
    )
    validation_contexts: int | None = Field(
        1024, ge=2, description="At most so many validation contexts, half of them for calibration; none = all."
    )
    validation_negatives: int = Field(4, ge=1, description="Negatives of each validation context, at most k.")
    calibrate: bool = Field(True, description="Fit scale and shift on half of the validation contexts afterwards.")
    training: EnergyTraining = EnergyTraining()
