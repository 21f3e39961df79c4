"""Where a run stands: what a checkpoint remembers beside tensors, when to stop, what a finished run reports.

Patience is counted in training sequences (bakhtin2019 stops after 2.5 million without improvement) or in validations.
Only a strictly better number counts as improvement. The state is JSON: a resumed run waits as long as one left alone.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from energylm.config.training import ValidationConfig
from energylm.records import Record
from energylm.training.journal import FILE_NAME as JOURNAL

MODEL_FOLDER = "model"  # of a run's folder: the trained model


@dataclass
class EarlyStopping:
    """Which weights were best on validation, and whether waiting for better ones has taken too long."""

    best_value: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    exhausted: bool = False

    def update(self, value: float, *, step: int, global_batch: int, config: ValidationConfig) -> bool:
        """Take note of a validation; True if its weights are the best so far."""
        sign = -1 if config.larger_is_better else 1
        if self.best_value is None or sign * value < sign * self.best_value:
            self.best_value, self.best_step, self.evaluations_since_best = value, step, 0
            return True
        self.evaluations_since_best += 1
        samples = (step - self.best_step) * global_batch
        self.exhausted = (config.patience_samples is not None and samples >= config.patience_samples) or (
            config.patience_evaluations is not None and self.evaluations_since_best >= config.patience_evaluations
        )
        return False


@dataclass
class RunState:
    """The position of a run. Data order and dropout are functions of (seed, step), so no generator is stored."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # wall clock of all sessions of the run up to the last checkpoint
    update_seconds: float = 0.0  # the part of it spent in updates, not in validation or on the disk
    validation: dict[str, float] = field(default_factory=dict)  # the latest
    best_validation: dict[str, float] = field(default_factory=dict)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        names = cls.__dataclass_fields__.keys()
        known = {name: value for name, value in values.items() if name in names}
        return cls(**known | {"early_stopping": EarlyStopping(**values["early_stopping"])})


@dataclass(frozen=True)
class TrainingResult:
    """What came of a run. The weights of `best_step` were saved (0: those it started from); the last step where nothing
    was validated."""

    folder: Path
    parameters: int  # of all modules of the task, tied tensors once
    steps: int
    best_step: int
    validation: dict[str, float]  # after the last step
    best_validation: dict[str, float]  # of the weights that were saved
    tokens: int
    seconds: float
    tokens_per_second: float
    stopped_early: bool
    was_finished: bool = False  # nothing was done: the folder held this very run, complete

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Record):
    """What a verb that trains hands back, whatever it trained: where the run lies, how far it came, what it cost."""

    folder: Path  # the run
    model: Path  # the trained model's folder
    journal: Path
    parameters: int  # of all that was trained, tied tensors once
    steps: int
    best_step: int  # whose weights were saved
    tokens: int
    seconds: float
    tokens_per_second: float
    was_finished: bool

    @classmethod
    def of(cls, result: TrainingResult, output: Path, **own: Any) -> Self:
        """`own` is what the class adds to these fields."""
        paths: dict[str, Any] = {"folder": output, "model": output / MODEL_FOLDER, "journal": output / JOURNAL}
        same = {f.name: getattr(result, f.name) for f in fields(TrainedRun) if f.name not in paths}
        return cls(**paths, **same, **own)
