"""The median over seeds, and how far these lie apart: models may differ by their seed alone (clark2020 app. D)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from energylm.records import Record


@dataclass(frozen=True)
class SeedMedian(Record):
    """`deviation` is the sample standard deviation, None for a single seed."""

    value: float
    lowest: float
    highest: float
    deviation: float | None
    values: tuple[float, ...]  # by seed

    computed = ("spread",)

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.median(values)), min(values), max(values), deviation, tuple(map(float, values)))

    @property
    def spread(self) -> str:
        return f"{self.lowest:.1f}–{self.highest:.1f}"

    @property
    def index(self) -> int:
        """Which seed is the median, or the lower of the two in the middle."""
        return int(np.argsort(self.values, kind="stable")[(len(self.values) - 1) // 2])
