"""Where a run stands: what a checkpoint must remember beside tensors, and what a finished run reports."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from energylm.training.early_stopping import EarlyStopping


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
    """What came of a run. The weights of `best_step` were saved; the last step where nothing was validated."""

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
