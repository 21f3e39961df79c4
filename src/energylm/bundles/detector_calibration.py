"""What turns a detector's scores into probabilities and verdicts, by length; `calibration.json` of a detector's folder.

    log-odds of machine = scale · score + shift        fitted on held-out texts with both classes weighing the same
    machine             score > threshold              at most the asked share of human texts

Scores of short texts scatter more than those of long ones, so both are fitted for spans of lengths: a quarter, a half,
one, two and four blocks. A span is there if enough held-out texts reached it; below the first the detector abstains.

Relations  `estimators.false_positive_threshold` finds the threshold; `pipelines.detect_calibrate` fits all of it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from energylm.errors import ModelError

SPANS_IN_BLOCKS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class SpanCalibration:
    """For texts from `shortest` tokens on, up to the next span."""

    shortest: int
    scale: float
    shift: float
    threshold: float
    false_positive_rate: float  # expected at the threshold; at most the asked one
    false_positive_upper: float  # stays below this 95 times in 100
    human: int  # texts that the threshold comes from
    machine: int  # texts that, with human ones, scale and shift come from

    def log_odds(self, score: float) -> float:
        return self.scale * score + self.shift


@dataclass(frozen=True)
class DetectorCalibration:
    spans: tuple[SpanCalibration, ...]  # the shortest first
    asked_rate: float
    weights_sha256: str  # of the energy it belongs to
    sources: tuple[str, ...]  # names of the files

    @property
    def shortest(self) -> int:
        """Tokens below which the detector abstains."""
        return self.spans[0].shortest

    def at(self, tokens: int) -> SpanCalibration:
        """The span of a text of `tokens` tokens; the first for texts that are too short for any."""
        return max(
            (span for span in self.spans if span.shortest <= tokens), default=self.spans[0], key=lambda s: s.shortest
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, origin: str) -> Self:
        try:
            spans = tuple(SpanCalibration(**span) for span in values["spans"])
            found = cls(spans, values["asked_rate"], values["weights_sha256"], tuple(values["sources"]))
            numbers = [number for span in spans for number in asdict(span).values()]
            if not spans or not all(math.isfinite(number) for number in numbers):
                raise ValueError("no span, or a number that is not finite")
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{origin} is no calibration ({error}); make it again with `energylm detect calibrate`"
            ) from None
        return found


def span_lengths(block_tokens: int) -> list[int]:
    """The fewest tokens of each span."""
    return [max(1, round(blocks * block_tokens)) for blocks in SPANS_IN_BLOCKS]
