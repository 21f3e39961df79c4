"""The shards of one part of the text: written whole or not at all, hashed on the way, opened only for splits in use;
and the check, before a shard is first read, that it still holds the bytes that were written."""

import hashlib
from array import array
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from energylm.data.manifest import INDEX_DTYPE, ShardRecord
from energylm.errors import DataError
from energylm.files import atomic_file, sha256_of_file

_intact: set[tuple[str, int, int, str]] = set()  # path, size, time of change, SHA-256 of what this process has compared


def check_shard(path: Path, sha256: str, *, cure: str, again: bool = False) -> None:
    """Refuse a shard whose bytes are not those that were written. A file is read once in a process, about a second a
    gigabyte, and anew if it has changed since, or `again`."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {cure}")
    status = path.stat()
    compared = (str(path.absolute()), status.st_size, status.st_ctime_ns, sha256)
    if compared in _intact and not again:
        return
    if sha256_of_file(path) != sha256:
        raise DataError(f"{path} has changed since it was made (its SHA-256 is another); {cure}")
    _intact.add(compared)


class PartWriter:
    """`with PartWriter(...) as part: part.write(...)`; the files appear at the end of the block, unless it failed."""

    def __init__(self, folder: Path, number: int, *, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._folder, self._number, self._dtype = folder, number, dtype
        self._shards: dict[str, _ShardFile] = {}
        self._files = ExitStack()
        self.records: list[ShardRecord] = []

    def write(self, split: str, tokens: NDArray[np.uint32], ends: list[tuple[int, int]]) -> None:
        """Append to a split. `ends`: (end in `tokens`, bytes of text) of each document that ends in `tokens`."""
        if split not in self._shards:
            self._shards[split] = _ShardFile(self._files, self._folder, f"{split}-{self._number:05}", split)
        self._shards[split].append(tokens.astype(self._dtype), ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with self._files:  # renames, or cleans up if even that fails
                self.records = [self._shards[split].finish() for split in sorted(self._shards)]
        else:
            self._files.__exit__(kind, error, trace)


class _ShardFile:
    def __init__(self, files: ExitStack, folder: Path, name: str, split: str) -> None:
        self._name, self._split = name, split
        self._tokens_file = files.enter_context(open(files.enter_context(atomic_file(folder / f"{name}.tokens")), "wb"))
        self._index_file = files.enter_context(open(files.enter_context(atomic_file(folder / f"{name}.index")), "wb"))
        self._digest = hashlib.sha256()
        self._index = array("q")
        self._tokens = 0

    def append(self, tokens: NDArray[np.unsignedinteger], ends: list[tuple[int, int]]) -> None:
        data = np.ascontiguousarray(tokens).data.cast("B")
        self._tokens_file.write(data)
        self._digest.update(data)
        for end, text_bytes in ends:
            self._index.append(self._tokens + end)
            self._index.append(text_bytes)
        self._tokens += tokens.size

    def finish(self) -> ShardRecord:
        index = np.frombuffer(self._index, dtype=np.int64).astype(INDEX_DTYPE)
        self._index_file.write(index.tobytes())
        return ShardRecord(
            split=self._split,
            name=self._name,
            documents=index.size // 2,
            tokens=self._tokens,
            bytes=int(index[1::2].sum()),
            tokens_sha256=self._digest.hexdigest(),
            index_sha256=hashlib.sha256(index.tobytes()).hexdigest(),
        )
