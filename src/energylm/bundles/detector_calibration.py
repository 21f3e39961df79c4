"""What turns a detector's scores into probabilities and verdicts, by length; `calibration.json` of a detector's folder.

    log-odds of machine = scale · score + shift        fitted on held-out texts with both classes weighing the same
    machine             score > threshold              at most the asked share of human texts like those held out

Scores of short texts scatter more than those of long ones, so both are fitted for spans of lengths: a quarter, a half,
one, two and four blocks. A text calibrates the span that it falls into by itself, whole. A span's promise is one of

    length    its own texts are enough: the rate holds for human texts of this length
    together  they are not, but with those of the other small spans: the rate holds for all of these lengths together
    none      not even then: the detector abstains, as below the first span
    shift     the rate is for texts of another place, all lengths together: the calibration texts are weighted

Over texts of all lengths the rate holds in any case (`estimators.false_positive_threshold`), and within each group of
texts that is large enough in its span. `caveats` names what makes a verdict on a text doubtful.

Relations  `verbs.detect.calibrating` fits all of it; `TextRange` says which texts are like those held out.
"""

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from energylm.data.text_blocks import EncodedText
from energylm.data.text_disguises import LAST_LATIN
from energylm.errors import ModelError
from energylm.estimators.false_positive_threshold import GroupRate, false_positive_threshold
from energylm.records import Record

REFUSED_RATE = 0.02  # at 1 % a few odd texts among real calibration texts let German pass, at 2 % they do not
FEWEST_RANKED = 9  # texts; with fewer, more than one text in ten would be refused
REFERENCE_EVERY = 3
USUAL_SHARE = 0.1  # of the reference texts, at least 2, have a usual word or character
MOST_WORDS = 300
SMALLEST_SPREAD = 0.02  # features are shares; one that hardly varies would refuse texts for a single digit
FEATURES = (
    "share of usual words",
    "share of usual characters",
    "share of letters",
    "share of capitals",
    "share of digits",
    "share of punctuation",
    "share of blanks",
    "tokens per character",
)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TextRange(Record):
    """Whether a text is like those of the calibration: a detector must abstain on German if it has seen English only.

        strangeness(text) = √( (1/J) Σ_j ((f_j − median_j) / spread_j)² )    J cheap features f of characters and words
        out of range        strangeness above the k-th smallest of m,  k = ⌈(m + 1)(1 − r)⌉

    Every third human text says which words and characters are usual and gives medians and spreads (1.4826 · median
    absolute deviation); the m others are ranked. They had no part in the measure, so a new human text like them is
    refused with probability at most r. What it is not: a test of the topic.
    """

    words: tuple[str, ...]
    characters: str
    medians: tuple[float, ...]  # of the features
    spreads: tuple[float, ...]
    limit: float  # of the strangeness
    rate: float  # at most this share of human texts like those of the calibration is refused
    texts: int  # that the limit comes from

    @classmethod
    def of(cls, texts: Sequence[EncodedText]) -> Self | None:
        """The range of these human texts; none if they are too few to say."""
        reference = [text for number, text in enumerate(texts) if number % REFERENCE_EVERY == 0]
        ranked = [text for number, text in enumerate(texts) if number % REFERENCE_EVERY != 0]
        if len(ranked) < FEWEST_RANKED:
            return None
        words = _usual((set(_words(text.text)) for text in reference), len(reference))[:MOST_WORDS]
        characters = "".join(sorted(_usual((set(text.text) for text in reference), len(reference))))
        features_NJ = np.stack([_features(text, frozenset(words), frozenset(characters)) for text in reference])
        medians_J = np.median(features_NJ, axis=0)
        spreads_J = 1.4826 * np.median(np.abs(features_NJ - medians_J), axis=0)
        spreads_J = np.maximum(spreads_J, SMALLEST_SPREAD)
        measure = cls(tuple(words), characters, tuple(medians_J.tolist()), tuple(spreads_J.tolist()), math.inf, 0.0, 0)
        rate = max(REFUSED_RATE, 1 / (len(ranked) + 1))
        limit = false_positive_threshold([measure.strangeness(text) for text in ranked], rate)
        return replace(measure, limit=limit.threshold, rate=limit.expected_rate, texts=limit.texts)

    def strangeness(self, text: EncodedText) -> float:
        return float(np.sqrt((self.deviations(text) ** 2).mean()))

    def complaint(self, text: EncodedText) -> str | None:
        """Why the text is out of range; none if it is not."""
        if self.strangeness(text) <= self.limit:
            return None
        deviations_J = self.deviations(text)
        most = int(np.abs(deviations_J).argmax())
        value = self.medians[most] + deviations_J[most] * self.spreads[most]
        return (
            f"it is unlike the human texts of the calibration, most by its {FEATURES[most]}: {value:.2g}, there about "
            f"{self.medians[most]:.2g} (of texts like them at most {self.rate:.2g} are refused)"
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        text_range = super().from_json(values)
        numbers = (*text_range.medians, *text_range.spreads, text_range.limit, text_range.rate)
        if len(text_range.medians) != len(FEATURES) or not all(math.isfinite(number) for number in numbers):
            raise ValueError(f"its range has not {len(FEATURES)} finite features")
        return text_range

    @functools.cached_property
    def _sets(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.words), frozenset(self.characters)

    def deviations(self, text: EncodedText) -> NDArray[np.float64]:
        """(J,) of each feature from its median, in spreads."""
        return np.asarray((_features(text, *self._sets) - np.array(self.medians)) / np.array(self.spreads))


def _features(text: EncodedText, words: frozenset[str], characters: frozenset[str]) -> NDArray[np.float64]:
    """(J,) in the order of `FEATURES`."""
    counts = Counter(text.text)
    kinds: Counter[str] = Counter()
    for character, count in counts.items():
        kinds[_kind(character)] += count
    of_text = _words(text.text)
    length = max(len(text.text), 1)
    shares = [
        sum(count for character, count in counts.items() if character in characters),
        kinds["letter"] + kinds["capital"],
        kinds["capital"],
        kinds["digit"],
        kinds["punctuation"],
        kinds["blank"],
        len(text),
    ]
    known = sum(map(words.__contains__, of_text)) / max(len(of_text), 1)
    return np.array([known, *(share / length for share in shares)])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if character.isspace():
        return "blank"
    category = unicodedata.category(character)
    if category == "Lu":
        return "capital"
    return {"L": "letter", "N": "digit", "P": "punctuation", "S": "punctuation"}.get(category[0], "other")


def _usual(of_texts: Iterable[set[str]], texts: int) -> list[str]:
    """What occurs in a good share of the texts, the commonest first, ties by name."""
    counts = Counter(item for of_text in of_texts for item in of_text)
    fewest = max(2, math.ceil(USUAL_SHARE * texts))
    return sorted((item for item, count in counts.items() if count >= fewest), key=lambda item: (-counts[item], item))


SHORT_WORDS = 100
FOREIGN_LETTERS = 0.2  # share of letters that are not Latin
FEWEST_STOP_WORDS = 0.2  # share of words; English prose has about twice as many, other languages a fifth of that
MOST_MARKUP = 0.05  # share of characters in tags
STOP_WORDS = frozenset(
    "the of and to a in is it that was for on as with he she be at by this had not are but from or have an they which "
    "one you were his her all we their there been has when who will more no if out so said what up its about into than "
    "them can only other i my me your do did would could our".split()
)
SECOND_LANGUAGE = (
    "people who write in a second language are called machine more often than others, unless the calibration texts "
    "are theirs"
)
_TAG = re.compile(r"</?[A-Za-z!][^<>]*>")


def caveats(text: EncodedText, *, is_machine: bool) -> str:
    """What readers of a verdict must know of the text that was read, to stand at the end of the reason; empty if there
    is nothing. These are checks of a text by its words and letters: they say nothing of who wrote it."""
    words, letters = _words(text.text), [character for character in text.text if character.isalpha()]
    markup = sum(map(len, _TAG.findall(text.text))) / max(len(text.text), 1)
    foreign = sum(character > LAST_LATIN for character in letters) / max(len(letters), 1)
    known = sum(map(STOP_WORDS.__contains__, words)) / max(len(words), 1)
    checks = {
        f"it is short, under {SHORT_WORDS} words": len(words) < SHORT_WORDS,
        "it is not in Latin letters, or not only": foreign > FOREIGN_LETTERS,
        "it seems not to be English": foreign <= FOREIGN_LETTERS and known < FEWEST_STOP_WORDS,
        "much of it is markup": markup > MOST_MARKUP,
        SECOND_LANGUAGE: is_machine,
    }
    risks = [risk for risk, applies in checks.items() if applies and words]
    undone = f"; undone before reading: {text.undone}" if text.undone else ""
    return undone + (f"; risks: {'; '.join(risks)}" if risks else "")


SPANS_IN_BLOCKS = (0.25, 0.5, 1.0, 2.0, 4.0)
FORMAT = 2  # of the file; 1 had thresholds from whole texts and pieces of longer ones, which kept no promise
Promise = Literal["length", "together", "none", "shift"]
Covariates = Literal["all", "score"]  # what weights for another place come from


@dataclass(frozen=True)
class SpanCalibration(Record):
    """For texts from `shortest` tokens on, up to the next span."""

    shortest: int
    scale: float
    shift: float
    threshold: float | None
    false_positive_rate: float | None  # expected at the threshold; at most the asked one
    false_positive_upper: float | None  # stays below this 95 times in 100; known for the promise `length` only
    human: int  # texts that the threshold comes from: of this length, of all small spans together, or all (weighted)
    machine: int  # texts that, with human ones, scale and shift come from
    promise: Promise = "length"

    def log_odds(self, score: float) -> float:
        return self.scale * score + self.shift


@dataclass(frozen=True)
class Shift(Record):
    """How far the human texts of the calibration carry to the texts of another place."""

    new_texts: int  # unlabelled
    effective_texts: float  # so many texts of equal weight say as much as the weighted ones
    by: Covariates = "all"

    def __str__(self) -> str:
        alone = "" if self.by == "all" else " by their scores alone, since they are too different otherwise"
        return f"weighted by {self.new_texts:,} unlabelled texts{alone}, they count as {self.effective_texts:,.0f}"

    @property
    def assumption(self) -> str:
        if self.by == "all":
            return "if what was measured is all that sets them apart"
        return "if a text of the same score is as likely a person's there as here"


@dataclass(frozen=True)
class DetectorCalibration(Record):
    spans: tuple[SpanCalibration, ...]  # the shortest first
    asked_rate: float
    weights_sha256: str  # of the energy it belongs to
    sources: tuple[str, ...]  # names of the files
    text_range: TextRange | None = None  # of the human texts; none: too few to say
    max_tokens: int | None = None  # of each text that were read, from its beginning; none = whole texts
    groups: tuple[GroupRate, ...] = ()  # of its human texts, at the thresholds above; the worst first
    shift: Shift | None = None  # of a calibration for another place

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
        if self.shift is not None:
            return (
                f"at most {self.asked_rate:.3g} of human texts like {self.shift.new_texts:,} unlabelled ones (by "
                f"{span.human:,} calibration texts that count as {self.shift.effective_texts:,.0f}, "
                f"{self.shift.assumption})"
            )
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
