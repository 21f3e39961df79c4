"""Which texts were seen before: a sketch of hashes, much smaller than the texts, kept beside what was trained on them.

    shingles    every 13 consecutive words (without case, blanks as one), hashed to 64 bits
    sketch      those whose hash ends in three zero bits, an eighth of them, and the smallest hash of each text
    overlap     half or more of a text's own sketch is among what was seen

So a text is found again when it was cut elsewhere, re-wrapped or changed in some words, while a sample that only
repeats the first words of a training text is not. Shorter texts are one shingle: they are found when they are equal.

Use it     to say that a test set holds training texts; nothing of the texts can be read from the sketch.
Relations  `data.detection` drops equal texts inside one set; `data.document` keeps equal documents in one split.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SHINGLE_WORDS = 13
KEPT_BITS = 3  # one hash in 2³ is kept
SAME = 0.5  # of a text's sketch
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers do not vanish modulo 2⁶⁴

Hashes = NDArray[np.uint64]


class SeenTexts:
    """The sketch of many texts, as sorted distinct hashes."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes

    @classmethod
    def of(cls, texts: Iterable[str]) -> "SeenTexts":
        parts = [sketch(text) for text in texts]
        return cls(np.unique(np.concatenate([np.zeros(0, np.uint64), *parts])))

    def share(self, text: str) -> float:
        """The share of the text's own sketch that was seen."""
        own = sketch(text)
        return float(np.isin(own, self.hashes).mean()) if len(own) else 0.0

    def has(self, text: str) -> bool:
        return self.share(text) >= SAME


def sketch(text: str) -> Hashes:
    """The kept hashes of a text; at least one, unless it has no word."""
    words = np.array([_word_hash(word) for word in text.lower().split()], dtype=np.uint64)
    if not len(words):
        return words
    size = min(SHINGLE_WORDS, len(words))
    powers = np.array([pow(int(_BASE), place, 1 << 64) for place in range(size)], dtype=np.uint64)
    shingles = (np.lib.stride_tricks.sliding_window_view(words, size) * powers).sum(axis=1, dtype=np.uint64)
    hashes = _mixed(shingles)
    kept = hashes & np.uint64((1 << KEPT_BITS) - 1) == 0
    kept[hashes.argmin()] = True
    return np.unique(hashes[kept])


def _mixed(values: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=1 << 17)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
