"""What a verb that trains hands back, whatever it trained: where the run lies, how far it came, what it cost."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from energylm.records import Record
from energylm.training.engine import MODEL_FOLDER
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.state import TrainingResult


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Record):
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
