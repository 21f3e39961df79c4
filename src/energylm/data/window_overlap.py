"""Whether windows of a corpus have been seen before, by hashes of their runs of tokens.

    run i of x     x_i … x_{i+r−1}                  h_i = Σ_j (x_{i+j} + 1) · m_j   mod 2⁶⁴,   m_j odd and fixed
    share of x     how many of its runs occur in the texts that were seen

Runs stand at every place, so a text is found again however windows are cut; a formula of a few words that two texts
have in common makes a small share, a text that was seen makes a share of one. Two different runs have the same hash
about once in 2⁶⁴ pairs. A million tokens take a fraction of a second.

Relations  `text_overlap` keeps a small sketch of whole texts by words; windows of some dozen tokens need every run.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int] | NDArray[np.int64]  # of one text
RUN_TOKENS = 16  # half a sentence: longer than what two authors often write alike
SEEN_SHARE = 0.5  # of its runs: from here on a text counts as seen


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
        found = np.isin(hashes, self._seen)
        counts_B = np.bincount(owners, minlength=len(texts))
        return np.bincount(owners[found], minlength=len(texts)) / np.maximum(counts_B, 1)

    def contains(self, texts: Sequence[Tokens]) -> NDArray[np.bool_]:
        """(B,) whether each text was seen."""
        return self.shares(texts) >= SEEN_SHARE


def _runs(texts: Sequence[Tokens], run_tokens: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes of all runs inside texts, and the number of the text of each."""
    lengths_B = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, np.int64), *(np.asarray(text, dtype=np.int64) for text in texts)])
    places = max(len(tokens) - run_tokens + 1, 0)
    owner = np.repeat(np.arange(len(texts)), lengths_B)
    inside = owner[:places] == owner[len(tokens) - places :]  # the first and the last token are of one text
    hashes = np.zeros(places, dtype=np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for offset, multiplier in enumerate(_multipliers(run_tokens)):
        hashes += values[offset : offset + places] * multiplier
    return hashes[inside], owner[:places][inside]


def _multipliers(count: int) -> NDArray[np.uint64]:
    return np.random.default_rng(count).integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
