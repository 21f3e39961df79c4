"""What a detector says of a text: scores, a probability, a verdict or the reason why there is none."""

import math
from dataclasses import dataclass
from typing import Literal

from energylm.records import Record

Verdict = Literal["human", "machine", "abstains"]


@dataclass(frozen=True)
class BlockScore(Record):
    """A block is characters `start` to `end` of the text; a higher score means machine."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Detection(Record):
    """One text. `log_odds` are those of machine at equal odds beforehand; the raw score where nothing is calibrated."""

    verdict: Verdict
    reason: str  # of an abstention; else how the verdict came about
    score: float | None  # mean over blocks, higher = machine; None for a text without tokens
    log_odds: float | None
    probability: float | None  # of machine, if human and machine were equally likely beforehand; None: not calibrated
    threshold: float | None  # of the score, for the false-positive rate that the detector was calibrated for
    tokens_used: int
    tokens: int
    blocks: tuple[BlockScore, ...]


def logistic(log_odds: float) -> float:
    """1 / (1 + e^−x) that does not overflow."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else math.exp(log_odds) / (1 + math.exp(log_odds))
