"""Which texts were seen before: by a small sketch of words, or by all runs of tokens.

`SeenTexts`     a sketch of hashes, much smaller than the texts, kept beside what was trained on them. Nothing of the
                texts can be read from it
    shingles    every 13 consecutive words (without case, blanks as one), hashed to 64 bits
    sketch      those whose hash ends in three zero bits, an eighth of them, and the smallest hash of each text
    overlap     half or more of a text's own sketch is among what was seen

So a text is found again when it was cut elsewhere, re-wrapped or changed in some words, while a sample that only
repeats the first words of a training text is not. Shorter texts are one shingle: they are found when they are equal.

`SeenWindows`   windows of some dozen tokens, which need every run
    run i of x  x_i … x_{i+r−1}                  h_i = Σ_j (x_{i+j} + 1) · m_j   mod 2⁶⁴,   m_j odd and fixed
    overlap     half or more of a window's runs occur in the texts that were seen

Runs stand at every position, so a text is found again however windows are cut; a formula of a few words that two texts
have in common makes a small share, a text that was seen makes a share of one. Two different runs have the same hash
about once in 2⁶⁴ pairs. A million tokens take a fraction of a second.

Relations  `data.detection` drops equal texts inside one set; `data.document` keeps equal documents in one split.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SHINGLE_WORDS = 13
SKETCH_BITS = 3  # one hash in 2³ is kept
SEEN_SHARE = 0.5  # of a text's sketch or of its runs: from here on it counts as seen
RUN_TOKENS = 16  # half a sentence: longer than what two authors often write alike
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers do not vanish modulo 2⁶⁴

Hashes = NDArray[np.uint64]
Tokens = Sequence[int] | NDArray[np.int64]  # of one text


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
        return self.share(text) >= SEEN_SHARE


def sketch(text: str) -> Hashes:
    """The kept hashes of a text; at least one, unless it has no word."""
    words = np.array([_word_hash(word) for word in text.lower().split()], dtype=np.uint64)
    if not len(words):
        return words
    size = min(SHINGLE_WORDS, len(words))
    powers = np.array([pow(int(_BASE), index, 1 << 64) for index in range(size)], dtype=np.uint64)
    shingles = (np.lib.stride_tricks.sliding_window_view(words, size) * powers).sum(axis=1, dtype=np.uint64)
    hashes = _mixed(shingles)
    in_sketch = hashes & np.uint64((1 << SKETCH_BITS) - 1) == 0
    in_sketch[hashes.argmin()] = True
    return np.unique(hashes[in_sketch])


def _mixed(values: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=1 << 17)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


class SeenWindows:
    """Windows that were learnt from; `shares` tells how much of others stands in them."""

    def __init__(self, texts: Sequence[Tokens], *, run_tokens: int = RUN_TOKENS) -> None:
        if run_tokens < 1:
            raise ValueError(f"a run has at least 1 token, came {run_tokens}")
        self.run_tokens = run_tokens
        self._seen = np.unique(_runs(texts, run_tokens)[0])

    def shares(self, texts: Sequence[Tokens]) -> NDArray[np.float64]:
        """(B,) the share of each text's runs that were seen; 0 for a text that is shorter than a run."""
        hashes, owners = _runs(texts, self.run_tokens)
        counts_B = np.bincount(owners, minlength=len(texts))
        return np.bincount(owners[np.isin(hashes, self._seen)], minlength=len(texts)) / np.maximum(counts_B, 1)

    def contains(self, texts: Sequence[Tokens]) -> NDArray[np.bool_]:
        """(B,) whether each text was seen."""
        return self.shares(texts) >= SEEN_SHARE


def _runs(texts: Sequence[Tokens], run_tokens: int) -> tuple[Hashes, NDArray[np.int64]]:
    """The hashes of all runs inside texts, and the number of the text of each."""
    lengths_B = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, np.int64), *(np.asarray(text, dtype=np.int64) for text in texts)])
    runs = max(len(tokens) - run_tokens + 1, 0)
    owner = np.repeat(np.arange(len(texts)), lengths_B)
    inside = owner[:runs] == owner[len(tokens) - runs :]  # the first and the last token are of one text
    hashes = np.zeros(runs, dtype=np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for offset, multiplier in enumerate(_multipliers(run_tokens)):
        hashes += values[offset : offset + runs] * multiplier
    return hashes[inside], owner[:runs][inside]


def _multipliers(count: int) -> Hashes:
    return np.random.default_rng(count).integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
