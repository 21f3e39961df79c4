"""Train an energy of a small language by each objective and compute its likelihood exactly: a step of recipes.

goyal2021 §6.2.2 and 6.2.3, table 6.1, figure 6.1.

A study is a set of cells (language, size, objective, seed). A cell is trained and measured in a folder of its own,
which ends with `cell.json`; a study that was killed takes finished cells as they are and goes on with the rest.

Relations  `exact_study_cells` makes the cells and their numbers.
"""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from energylm.config.base import merged
from energylm.config.models import (
    LIKELIHOOD,
    MASKED,
    PHONEMES,
    PROJECTIONS,
    PSEUDO_LIKELIHOOD,
    StudyLanguage,
    StudyModel,
    StudyObjective,
)
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.chains.exact_study_cells import ExactStudyResult


class ExactStudy(Verb):
    """Train an energy by every objective on every language at every size, and measure its likelihood exactly.

    Each such cell is done `seeds` times. A folder holds one study, to which languages, sizes, objectives and seeds may
    be added.
    """

    writes = "required"

    languages: tuple[StudyLanguage, ...] = Field(
        min_length=1, description="Small languages, or phonemes of English words."
    )
    sizes: tuple[int | None, ...] = Field(
        (1000, 10000), min_length=1, description="Training sequences, validation among them; none = all that there are."
    )
    objectives: tuple[StudyObjective, ...] = Field(
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
        TrainingConfig(
            steps=400,
            global_batch=500,
            optimizer=OptimizerConfig(learning_rate=0.02),
            validation=ValidationConfig(every_steps=20, patience_evaluations=6),
            checkpoint=CheckpointConfig(every_steps=1000, keep=1),
            log_every_steps=20,
        ),
        description="Of every cell; the seed is the cell's own.",
    )
    training_of: dict[StudyModel, dict[str, Any]] = Field(
        {}, description="Settings of `training` that differ for an objective, or for the teacher of projections."
    )

    def training_for(self, what: StudyModel, *, seed: int = 0) -> TrainingConfig:
        settings = merged(self.training.model_dump(exclude={"preset"}), self.training_of.get(what, {}))
        return TrainingConfig.model_validate({**settings, "seed": seed})

    @property
    def has_teacher(self) -> bool:
        return any(objective in PROJECTIONS for objective in self.objectives)

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

    def check(self, job: Job = DEFAULT_JOB) -> str:
        each = len(self.sizes) * len(self.objectives) + self.has_teacher
        cells = len(self.languages) * self.seeds * each
        return f"{job.folder}: would train and measure {cells:,} cells: {', '.join(self.objectives)}"

    def run(self, job: Job = DEFAULT_JOB) -> "ExactStudyResult":
        from energylm.verbs.chains.exact_study_cells import run_study

        return run_study(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.chains.costs import count_study

        return count_study(self, around)
