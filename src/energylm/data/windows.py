"""Windows of any length and stride over a split: an index, never copies. Window number → tokens by arithmetic.

    packed    documents joined by end-of-text; windows may cross them    start(i) = i·stride
    within    windows inside a document; short ones give none            start(i) = its start + (i − earlier)·stride

`packed` trains language models; `within` is the protocol of Bakhtin et al. 2019 §4.1 (length 160, stride 40 or 160, at
most 60,000 test windows at random: `choose`). A document of T tokens holds max(0, ⌊(T − length)/stride⌋ + 1) windows:
`within` needs one cumulative sum over documents and a binary search a window; `packed` needs nothing.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from energylm.data.corpus import Corpus
from energylm.errors import DataError
from energylm.randomness import derive_seed, shuffled


class Windows:
    """`len(windows)`, `windows.gather(indices)`. A stride of None means the length: windows side by side."""

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        length: int,
        stride: int | None = None,
        documents: Literal["packed", "within"] = "packed",
    ) -> None:
        self.length, self.stride = length, stride if stride is not None else length
        if length < 1 or self.stride < 1:
            raise DataError(f"windows of length {length} and stride {self.stride}: both must be at least 1")
        if documents not in ("packed", "within"):
            raise DataError(f"windows over documents {documents!r}: expected 'packed' or 'within'")
        self._tokens = corpus.split_tokens(split)
        self._ends: NDArray[np.int64] | None = None  # windows in the documents up to each one; None when packed
        self.short_documents = 0  # documents that are shorter than a window, and give none
        if documents == "packed":
            longest, what = len(self._tokens), "all its documents together have"
            self._size = _count(np.array(longest), length, self.stride).item()
        else:
            table = corpus.documents(split)
            longest, what = int(table.lengths.max(initial=0)), f"the longest of its {len(table):,} documents has"
            self._document_starts, self._ends = table.starts, np.cumsum(_count(table.lengths, length, self.stride))
            self.short_documents = int((table.lengths < length).sum())
            self._size = int(self._ends[-1]) if len(table) else 0
        if self._size == 0:
            raise DataError(
                f"corpus {corpus.folder}, split {split!r}: no window of {length} tokens fits, {what} {longest:,}; "
                f"choose a length of at most {longest:,}, {'packed documents, ' if documents == 'within' else ''}"
                "or build a larger corpus"
            )

    def __len__(self) -> int:
        return self._size

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,): where each window begins in the split's tokens."""
        indices_B = np.asarray(indices, dtype=np.int64)
        if indices_B.size and (indices_B.min() < 0 or indices_B.max() >= self._size):
            raise IndexError(f"window numbers must lie in [0, {self._size})")
        if self._ends is None:
            return indices_B * self.stride
        document_B = self.document_numbers(indices_B)
        earlier_B = np.where(document_B > 0, self._ends[document_B - 1], 0)
        return self._document_starts[document_B] + (indices_B - earlier_B) * self.stride

    def document_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,): the document of each window, for statistics by document. Windows `within` documents only."""
        if self._ends is None:
            raise DataError("packed windows cross documents and belong to none; use documents='within'")
        indices_B = np.asarray(indices, dtype=np.int64)
        order = np.argsort(indices_B)  # neighbours are found together: sorting first takes half the time
        numbers_B = np.empty_like(indices_B)
        numbers_B[order] = np.searchsorted(self._ends, indices_B[order], side="right")
        return numbers_B

    def gather(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B, length) int64: the tokens of the windows `indices`, in any order."""
        return self._tokens.rows(self.starts(indices), length=self.length)

    def choose(self, count: int, *, seed: int) -> NDArray[np.int64]:
        """`count` distinct windows at random (all of them, shuffled, if there are no more): the capped test set."""
        positions = np.arange(min(count, self._size), dtype=np.int64)
        return shuffled(positions, self._size, seed=derive_seed(seed, "chosen windows"))


def _count(tokens: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    return np.maximum(0, (tokens - length) // stride + 1)
