"""Whether a text is like those a detector was calibrated on: it must abstain on German if it has seen English only.

    strangeness(text) = √( (1/J) Σ_j ((f_j − median_j) / spread_j)² )      J cheap features f of characters and words
    out of range        strangeness above the k-th smallest of m,  k = ⌈(m + 1)(1 − r)⌉

Every third human text of the calibration says which words and characters are usual and gives medians and spreads
(1.4826 · median absolute deviation); the m others are ranked. They had no part in the measure, so a new human text like
them is refused with probability at most r (`estimators.false_positive_threshold`). What it is not: a test of the topic.

Relations  `detector_calibration` keeps it; `detector` abstains by it.
"""

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from energylm.data.text_blocks import EncodedText
from energylm.estimators.false_positive_threshold import false_positive_threshold
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
        found = false_positive_threshold([measure.strangeness(text) for text in ranked], rate)
        return replace(measure, limit=found.threshold, rate=found.expected_rate, texts=found.texts)

    def strangeness(self, text: EncodedText) -> float:
        return float(np.sqrt((self._deviations(text) ** 2).mean()))

    def complaint(self, text: EncodedText) -> str | None:
        """Why the text is out of range; none if it is not."""
        if self.strangeness(text) <= self.limit:
            return None
        deviations_J = self._deviations(text)
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

    def _deviations(self, text: EncodedText) -> NDArray[np.float64]:
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
