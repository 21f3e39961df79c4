"""What sequence models are trained by and searched with: tasks, objectives with their relaxation, decoders."""

import math
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

ENTITIES: Final = "entities"
TAGS: Final = "tags"
TRANSLATION: Final = "translation"
CROSS_ENTROPY: Final = "cross-entropy"
SCHEDULED_SAMPLING: Final = "scheduled-sampling"
DIRECT_LOSS: Final = "direct-loss"
HINGE: Final = "hinge"
GREEDY: Final = "greedy"
BEAM: Final = "beam"
SOFT_BEAM: Final = "soft-beam"
LOCAL: Final = "local"
HAMMING: Final = "hamming"
DOUBLED_OUTSIDE: Final = "doubled-outside"
REFUSE: Final = "refuse"

TaskName = Literal["entities", "tags", "translation"]
Normalization = Literal["local", "global"]
UnseenTags = Literal["refuse", "wrong"]


class AlphaConfig(Config):
    """How peaked the relaxations are: α in an epoch is start · growth^epoch, at most `largest`."""

    start: float = Field(1.0, gt=0, description="α in the first epoch.")
    growth: float = Field(1.0, ge=1, description="α is multiplied by this after every epoch; 1 keeps it fixed.")
    largest: float = Field(1e4, gt=0, description="α grows no further than this.")

    def at(self, epoch: int) -> float:
        return min(self.start * math.exp(min(epoch * math.log(self.growth), 700.0)), self.largest)


class ObjectiveConfig(Config):
    """The loss and its relaxation (goyal2021 ch. 3 to 5)."""

    kind: Literal["cross-entropy", "scheduled-sampling", "direct-loss", "hinge"] = Field(
        CROSS_ENTROPY, description="What is minimised; the last two search with a soft beam and need a warm start."
    )
    predictions: Literal["greedy", "sample"] = Field(
        GREEDY, description="Scheduled sampling feeds back the best symbol, or one drawn from the model."
    )
    relaxed: bool = Field(True, description="Scheduled sampling by soft predictions (α); false is Bengio et al.'s.")
    mixing: Literal["inverse-sigmoid", "always"] = Field(
        "inverse-sigmoid", description="How often gold symbols are fed: fewer by inverse-sigmoid decay, or never."
    )
    strength: float = Field(100.0, gt=0, description="k of the decay k / (k + exp(epoch / k)): larger is gentler.")
    alpha: AlphaConfig = AlphaConfig()
    epoch_steps: int | None = Field(
        None, ge=1, description="Updates that α and the decay count as an epoch; none = a pass over the data."
    )
    beam: int = Field(3, ge=1, description="Elements of the soft beam (ch. 4: 3; ch. 5 tagging: 5).")
    normalization: Normalization = Field(
        LOCAL, description="Search by log-softmaxed scores (local) or by raw ones (global)."
    )
    cost: str = Field(HAMMING, description="A sum over positions: hamming, or doubled-outside for entities.")
    self_normalization: float = Field(
        0.0, ge=0, description="λ of the squared log Z that is added to cross-entropy (§5.3.1)."
    )

    @model_validator(mode="after")
    def _self_normalization_is_for_cross_entropy(self) -> Self:
        if self.self_normalization and self.kind != CROSS_ENTROPY:
            raise ValueError(f"self_normalization is added to cross-entropy, not to {self.kind}; set it to 0")
        return self


class DecodingConfig(Config):
    """How a trained model is searched."""

    method: Literal["greedy", "beam", "soft-beam"] = Field(BEAM, description="Which search writes the outputs.")
    beam: int = Field(3, ge=1, description="Elements of the beam.")
    alpha: float = Field(1.0, gt=0, description="How peaked a soft beam is.")
    normalization: Normalization = Field(
        LOCAL, description="Scores log-softmaxed at each step (local) or raw (global)."
    )
    length_exponent: float = Field(
        0.0, ge=0, description="Rank a beam's sequences by score / length to this power; 0 = the plain score."
    )
    length_ratio: float = Field(
        1.5, gt=0, description="A translation has at most so many tokens for each source token …"
    )
    length_extra: int = Field(10, ge=0, description="… and this many more.")
