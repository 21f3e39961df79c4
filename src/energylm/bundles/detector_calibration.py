"""What turns a detector's scores into probabilities and verdicts, by length; `calibration.json` of a detector's folder.

    log-odds of machine = scale · score + shift        fitted on held-out texts with both classes weighing the same
    machine             score > threshold              at most the asked share of human texts like those held out

Scores of short texts scatter more than those of long ones, so both are fitted for spans of lengths: a quarter, a half,
one, two and four blocks. A text calibrates the span that it falls into by itself, whole. A span's promise is one of

    length    its own texts are enough: the rate holds for human texts of this length
    together  they are not, but with those of the other small spans: the rate holds for all of these lengths together
    none      not even then: the detector abstains, as below the first span

Over texts of all lengths the rate holds in any case (`estimators.false_positive_threshold`).

Relations  `verbs.detect.calibrating` fits all of it; `detector_range` says which texts are like those held out.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self

from energylm.bundles.detector_range import TextRange
from energylm.errors import ModelError
from energylm.records import Record

SPANS_IN_BLOCKS = (0.25, 0.5, 1.0, 2.0, 4.0)
FORMAT = 2  # of the file; 1 had thresholds from whole texts and pieces of longer ones, which kept no promise
Promise = Literal["length", "together", "none"]


@dataclass(frozen=True)
class SpanCalibration(Record):
    """For texts from `shortest` tokens on, up to the next span."""

    shortest: int
    scale: float
    shift: float
    threshold: float | None
    false_positive_rate: float | None  # expected at the threshold; at most the asked one
    false_positive_upper: float | None  # stays below this 95 times in 100; known for the promise `length` only
    human: int  # texts that the threshold comes from: of this length, or of all small spans together
    machine: int  # texts that, with human ones, scale and shift come from
    promise: Promise = "length"

    def log_odds(self, score: float) -> float:
        return self.scale * score + self.shift


@dataclass(frozen=True)
class DetectorCalibration(Record):
    spans: tuple[SpanCalibration, ...]  # the shortest first
    asked_rate: float
    weights_sha256: str  # of the energy it belongs to
    sources: tuple[str, ...]  # names of the files
    text_range: TextRange | None = None  # of the human texts; none: too few to say
    max_tokens: int | None = None  # of each text that were read, from its beginning; none = whole texts

    format: ClassVar[int] = FORMAT
    computed = ("format",)

    @property
    def shortest(self) -> int:
        """Tokens below which the detector abstains."""
        return self.spans[0].shortest

    def at(self, tokens: int) -> SpanCalibration:
        """The span of a text of `tokens` tokens; the first for texts that are too short for any."""
        return max(
            (span for span in self.spans if span.shortest <= tokens), default=self.spans[0], key=lambda s: s.shortest
        )

    def lengths(self, span: SpanCalibration) -> str:
        """In words: 40 to 79 tokens."""
        later = [other.shortest for other in self.spans if other.shortest > span.shortest]
        return f"{span.shortest} to {min(later) - 1} tokens" if later else f"{span.shortest} tokens or more"

    def promised(self, span: SpanCalibration) -> str:
        """What holds at the threshold of a span, in words."""
        lengths = "of lengths that few of them have, together"
        if span.promise == "length":
            lengths = f"of {self.lengths(span)}"
        elif all(other.promise == span.promise for other in self.spans):
            lengths = "of all lengths together"
        return f"at most {self.asked_rate:.3g} of human texts like the {span.human:,} calibration texts {lengths}"

    @classmethod
    def read(cls, values: Mapping[str, Any], *, origin: str) -> Self:
        """From the content of the file `origin`; what is no calibration of this format is refused."""
        try:
            calibration = cls.from_json(values)
            numbers = [number for span in calibration.spans for number in asdict(span).values()]
            if not calibration.spans or not all(math.isfinite(n) for n in numbers if isinstance(n, int | float)):
                raise ValueError("no span, or a number that is not finite")
            if "format" not in values:
                raise ModelError(
                    f"{origin} is of an earlier version, whose thresholds did not keep the false-positive rate; "
                    "calibrate again: `energylm detect calibrate` with human and machine texts"
                )
            return calibration
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{origin} is no calibration ({error}); make it again with `energylm detect calibrate`"
            ) from None


def span_lengths(block_tokens: int) -> list[int]:
    """The fewest tokens of each span."""
    return [max(1, round(blocks * block_tokens)) for blocks in SPANS_IN_BLOCKS]
