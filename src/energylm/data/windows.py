"""Windows of any length and stride over a split: an index, never copies. Window number → tokens by arithmetic.

    packed    documents joined by end-of-text; windows may cross them    start(i) = i·stride
    within    windows inside a document; short ones give none            start(i) = its start + (i − earlier)·stride

`packed` trains language models; `within` is the protocol of Bakhtin et al. 2019 §4.1 (length 160, stride 40 or 160, at
most 60,000 test windows at random: `choose`). A document of T tokens holds max(0, ⌊(T − length)/stride⌋ + 1) windows:
`within` needs one cumulative sum over documents and a binary search a window; `packed` needs nothing.

Every verb that measures or continues windows takes them from `SourceWindows`, so that the same source, length and seed
mean the same windows everywhere.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from energylm.data.corpus import Corpus
from energylm.data.text_files import existing, read_whole
from energylm.data.tokenizer import plain_encoder, tokenizer_sha256
from energylm.errors import DataError, VocabularyMismatch
from energylm.progress import say
from energylm.randomness import derive_seed, shuffled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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


@dataclass(frozen=True)
class SourceWindows:
    """Windows of a corpus (chosen at random) or of a text file (evenly spaced), as token ids of a language model."""

    source: str  # a corpus folder, or a text or JSONL file
    length: int
    contexts: int  # windows
    seed: int
    split: str = "test"
    field: str = "text"
    documents: Literal["packed", "within"] = "within"

    @property
    def is_corpus(self) -> bool:
        return Path(self.source).is_dir()

    def check(self) -> str:
        """Find the windows without loading a model; which they are, in words."""
        existing(self.source)
        if not self.is_corpus:
            return f"{self.contexts} windows of {self.source}"
        available = len(self._of_corpus(Corpus.open(self.source)))
        return f"{min(self.contexts, available)} of {available:,} windows of {self.source} ({self.split})"

    def load(self, tokenizer: "PreTrainedTokenizerFast", *, model: str) -> list[list[int]]:
        """Token ids of each window. `model` is the language model's name, for messages."""
        if not self.is_corpus:
            path = Path(self.source)
            tokens = plain_encoder(tokenizer).encode(read_whole(path, field=self.field), add_special_tokens=False).ids
            return even_windows(tokens, windows=self.contexts, length=self.length, file=path)
        corpus = Corpus.open(self.source)
        if corpus.manifest.tokenizer.sha256 != tokenizer_sha256(tokenizer):
            raise VocabularyMismatch(
                f"{self.source} is tokenised with {corpus.vocabulary_size:,} tokens of its own but {model} reads its "
                f"{len(tokenizer):,}; build the corpus with --tokenizer {shlex.quote(model)}, or give a text file"
            )
        windows = self._of_corpus(corpus)
        chosen = windows.choose(self.contexts, seed=self.seed)
        if len(chosen) < self.contexts:
            say(
                f"energylm: {self.source} has {len(chosen)} windows of {self.length} tokens, {self.contexts} were "
                "asked for"
            )
        ids: list[list[int]] = windows.gather(chosen).tolist()
        return ids

    def describe(self, count: int) -> str:
        """Which `count` windows were measured, for the convention of a table."""
        how = f"{self.split}, documents {self.documents}" if self.is_corpus else "evenly spaced"
        return f"{count} windows of {self.length} tokens of {Path(self.source).name} ({how})"

    def _of_corpus(self, corpus: Corpus) -> Windows:
        return Windows(corpus, self.split, length=self.length, documents=self.documents)


def even_windows(tokens: Sequence[int], *, windows: int, length: int, file: Path | str) -> list[list[int]]:
    """Windows that do not overlap, from the very beginning to the very end of `tokens`."""
    if len(tokens) < windows * length:
        raise DataError(
            f"{file} has {len(tokens):,} tokens, {windows} windows of {length} need {windows * length:,}; "
            "ask for fewer or shorter windows"
        )
    starts = [number * (len(tokens) - length) // max(windows - 1, 1) for number in range(windows)]
    return [list(tokens[start : start + length]) for start in starts]
