"""Which weights were best on validation, and whether waiting for better ones has taken too long.

Patience is counted in training sequences (bakhtin2019 stops after 2.5 million without improvement) or in validations.
Only a strictly better number counts as improvement. The state is JSON: a resumed run waits as long as one left alone.
"""

from dataclasses import asdict, dataclass
from typing import Any

from energylm.config.training import ValidationConfig


@dataclass
class EarlyStopping:
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
