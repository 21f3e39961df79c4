"""What a training pipeline hands back, whatever it trained: where the run lies, how far it came, what it cost."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from energylm.training.engine import MODEL_FOLDER
from energylm.training.journal import FILE_NAME as JOURNAL
from energylm.training.state import TrainingResult


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    folder: Path  # the run
    model: Path  # the trained model's folder
    journal: Path
    steps: int
    best_step: int  # whose weights were saved
    tokens: int
    seconds: float
    tokens_per_second: float
    was_finished: bool

    @classmethod
    def of(cls, result: TrainingResult, output: Path, **own: Any) -> Self:
        """`own` is what the class adds to these fields."""
        return cls(
            folder=output,
            model=output / MODEL_FOLDER,
            journal=output / JOURNAL,
            steps=result.steps,
            best_step=result.best_step,
            tokens=result.tokens,
            seconds=result.seconds,
            tokens_per_second=result.tokens_per_second,
            was_finished=result.was_finished,
            **own,
        )

    def to_json(self) -> dict[str, Any]:
        paths = {"folder": self.folder, "model": self.model, "journal": self.journal}
        return asdict(self) | {name: str(path) for name, path in paths.items()}
