"""A corpus while it is being built: shards, and the record of finished parts, so that a killed build can go on.

The shards of a part of the text appear whole or not at all, are hashed on the way, and opened only for splits in use.
"""

import hashlib
import shutil
from array import array
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from energylm.config.base import Config
from energylm.data.corpus import Corpus
from energylm.data.manifest import (
    INDEX_DTYPE,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    Manifest,
    ShardRecord,
    is_intact,
    read_manifest,
)
from energylm.errors import DataError
from energylm.files import atomic_file, read_json, write_json
from energylm.progress import say

DRAFT_FILE = "draft.json"


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


class Draft(Config):
    """Finished parts, and how many documents of the sources they used up. Belongs to one `identity` of inputs."""

    identity: str
    parts: int = 0
    documents_read: int = 0
    empty_documents: int = 0
    shards: tuple[ShardRecord, ...] = ()

    def with_part(self, shards: list[ShardRecord], *, documents_read: int, empty_documents: int) -> "Draft":
        return Draft(
            identity=self.identity,
            parts=self.parts + 1,
            documents_read=self.documents_read + documents_read,
            empty_documents=self.empty_documents + empty_documents,
            shards=(*self.shards, *shards),
        )

    def save(self, folder: Path) -> None:
        write_json(folder / DRAFT_FILE, self.model_dump(mode="json"))


def read_draft(folder: Path) -> Draft | None:
    path = folder / DRAFT_FILE
    return Draft.checked(read_json(path), origin=str(path)) if path.exists() else None


def finished_draft(folder: Path, *, identity: str) -> Manifest | None:
    """The manifest of a corpus of the very same inputs that was finished but not yet put in its place."""
    if (folder / DRAFT_FILE).exists() or not (folder / MANIFEST_FILE).exists():
        return None
    try:
        Corpus.open(folder).verify()
    except DataError as damage:
        say(f"{damage}; starting over")
        return None
    manifest = read_manifest(folder)
    return manifest if manifest.identity == identity else None


def resume_draft(folder: Path, *, identity: str) -> Draft:
    """The draft an earlier run left for the very same inputs, or a new one; whatever else lies there is removed."""
    folder.mkdir(exist_ok=True)
    draft = read_draft(folder)
    if draft is not None and draft.identity != identity:
        say("the inputs or settings have changed since the interrupted build: starting over")
        draft = None
    if draft is not None and (damaged := _damaged(draft, folder)):
        say(f"{damaged} of the interrupted build is damaged: starting over")
        draft = None
    if draft is None:
        shutil.rmtree(folder)
        folder.mkdir()
        draft = Draft(identity=identity)
        draft.save(folder)
    elif draft.parts:
        say(f"going on after {draft.parts} finished parts ({draft.documents_read:,} documents)")
    wanted = {TOKENIZER_FOLDER, DRAFT_FILE, *(name for shard in draft.shards for name, _ in shard.files)}
    for entry in folder.iterdir():
        if entry.name not in wanted:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return draft


def _damaged(draft: Draft, folder: Path) -> Path | None:
    """A file of a finished part that is missing or has not the recorded SHA-256."""
    files = ((folder / name, sha256) for shard in draft.shards for name, sha256 in shard.files)
    return next((path for path, sha256 in files if not is_intact(path, sha256)), None)
