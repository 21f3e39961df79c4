"""What `energylm energy train` makes: an energy from which network, against which negatives, trained how."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from energylm.config.base import Config
from energylm.config.energy import NCE, REFUSE, TOKENS, EnergyKind, LongTexts, Objective, Pooling, Reads
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


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Folders = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]  # one folder or a list of them


class TrainEnergyConfig(Config):
    """An energy trained to tell the texts of corpora from language models'."""

    negatives: Folders = Field(
        description="The folders of generated continuations, made by `energylm negatives`: one, or a list of any "
        "generators, sides and corpora to learn from all of them, each in proportion to its contexts."
    )
    corpus: Folders = Field(
        description="The corpus folder that they were made from, for the real continuations: one for all, or one for "
        "each folder of negatives; all of the same tokenizer."
    )
    init: str = Field(
        description="What the energy starts from: a folder of a language model, masked model or encoder, a known model "
        "such as minilm-l6, a hub name; or random weights of a shape: tiny, mini, … (causal), bit-tiny, bit-base, …, "
        "bilstm-tiny, bilstm-small, bilstm-big, linear."
    )
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    kind: EnergyKind | None = Field(
        None, description="unit (causal), bit (bidirectional), bilstm or linear: checks that `init` is what was meant."
    )
    pooling: Pooling | None = Field(
        None,
        description="mean over all tokens (deng2020) or the first position of a bit energy (bakhtin2019's BiTransf); "
        "none = mean, and the sum for a linear energy.",
    )
    reads: Reads = Field(
        TOKENS, description="tokens: the corpus's own ids; text: decoded and encoded again, for any other encoder."
    )
    long_texts: LongTexts = Field(REFUSE, description="Text longer than the encoder: refuse it, or cut-left.")
    lm: str | None = Field(None, description="Refuse negatives that this language model did not write.")
    objective: Objective = Field(
        NCE,
        description="The loss: nce (deng2020 eq. 3; gives log-ratios), most-offending (bakhtin2019 eq. 1: that "
        "against the negative of lowest energy alone) or ranking (eq. 2, with `margin`).",
    )
    margin: float = Field(
        1.0, gt=0, description="Of the ranking loss: by how much real text is to lie lower (eq. 2: 1; figure 3: 0.1)."
    )
    negatives_per_context: int = Field(
        1, ge=1, description="Negatives of each context in a batch, a fresh choice each epoch (eq. 3: 1)."
    )
    validation: Folders | None = Field(
        None, description="Negatives of another split to validate on, one or a list; none = hold some contexts out."
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
