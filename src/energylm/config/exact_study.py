"""Exact studies of training objectives on small languages (goyal2021 §6.2.2 and 6.2.3, table 6.1, figure 6.1)."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.recipe import merged
from energylm.config.training import TrainingConfig

Language = Literal["palindromes", "hmm_low", "hmm_high", "phonemes"]
Objective = Literal["likelihood", "pseudo_likelihood", "masked", "projection", "projection_and_pseudo"]

LIKELIHOOD: Objective = "likelihood"
PSEUDO_LIKELIHOOD: Objective = "pseudo_likelihood"
MASKED: Objective = "masked"
PROJECTION: Objective = "projection"
PROJECTION_AND_PSEUDO: Objective = "projection_and_pseudo"
PROJECTIONS = (PROJECTION, PROJECTION_AND_PSEUDO)
PHONEMES: Language = "phonemes"

TRAINING: dict[str, Any] = {  # laid under whatever is given
    "steps": 400,
    "global_batch": 500,
    "optimizer": {"learning_rate": 0.02},
    "validation": {"every_steps": 20, "patience_evaluations": 6},
    "checkpoint": {"every_steps": 1000, "keep": 1},
    "log_every_steps": 20,
}


class ExactStudyConfig(Config):
    """Every objective on every language at every size, `seeds` times; each such cell is trained and measured once."""

    languages: tuple[Language, ...] = Field(min_length=1, description="Small languages, or phonemes of English words.")
    sizes: tuple[int | None, ...] = Field(
        (1000, 10000), min_length=1, description="Training sequences, validation among them; none = all that there are."
    )
    objectives: tuple[Objective, ...] = Field(
        (LIKELIHOOD, PSEUDO_LIKELIHOOD, MASKED), min_length=1, description="What is minimised."
    )
    seeds: int = Field(5, ge=1, description="Runs, each with data and initial weights of its own.")
    max_length: int = Field(6, ge=1, le=6, description="Phonemes of a word at most.")
    teacher_size: int = Field(
        100_000,
        ge=10,
        description="Sequences that the masked model behind a projection learns from, none of them later.",
    )
    validation_share: float = Field(
        0.2, gt=0, lt=1, description="Part of the training sequences that decides when to stop, by the same objective."
    )
    max_validation: int = Field(2000, ge=1, description="Validation sequences at most.")
    hidden_size: int = Field(32, ge=1, description="Width of each LSTM.")
    head_size: int = Field(64, ge=1, description="Width of the layer that joins both sides.")
    training: TrainingConfig = Field(
        TrainingConfig.model_validate(TRAINING), description="Of every cell; the seed is the cell's own."
    )
    training_of: dict[Objective | Literal["teacher"], dict[str, Any]] = Field(
        {}, description="Settings of `training` that differ for an objective, or for the teacher of projections."
    )

    def training_for(self, what: Objective | Literal["teacher"], *, seed: int = 0) -> TrainingConfig:
        settings = merged(self.training.model_dump(exclude={"preset"}), self.training_of.get(what, {}))
        return TrainingConfig.model_validate({**settings, "seed": seed})

    @property
    def has_teacher(self) -> bool:
        return any(objective in PROJECTIONS for objective in self.objectives)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_training(cls, values: Any) -> Any:
        given = values.get("training") if isinstance(values, Mapping) else None
        return {**values, "training": merged(TRAINING, given)} if isinstance(given, Mapping) else values

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        for what in self.training_of:
            self.training_for(what)
        if PHONEMES in self.languages and LIKELIHOOD in self.objectives:
            raise ValueError(
                "the likelihood of phonemes cannot be trained: every update would sum over 39⁶ sequences; "
                "leave out the objective likelihood or the language phonemes"
            )
        if PHONEMES not in self.languages and None in self.sizes:
            raise ValueError("only phonemes come to an end; give numbers as sizes of the other languages")
        return self
