"""What a corpus folder says about itself, and the check that a shard still holds the bytes that were written.

The manifest is written last, so a folder with one is whole. A shard is compared with its SHA-256 before it is first
read, once in a process.

A corpus folder holds `manifest.json`, `tokenizer/`, and for each part of the text and each split with documents in it

    train-00000.tokens   ids, little-endian uint16 (vocabulary ≤ 65,536) or uint32; every document ends in end-of-text
    train-00000.index    int64 pairs, one a document: where it ends in the .tokens file (in tokens), bytes of its text
"""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from energylm.config.base import Config
from energylm.errors import ConfigError, DataError
from energylm.files import read_json, sha256_of_file

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
TOKENIZER_FOLDER = "tokenizer"
INDEX_DTYPE = np.dtype("<i8")

_intact: set[tuple[str, int, int, str]] = set()  # path, size, time of change, SHA-256 of what this process has compared

Kind = TypeVar("Kind", bound=Config)


class SourceRecord(Config):
    """One file, folder entry or data set that was read."""

    name: str
    sha256: str
    bytes: int


class TokenizerRecord(Config):
    sha256: str = Field(
        description="Hash of vocabulary, merges and splitting; equal for tokenizers that agree on all ids."
    )
    vocabulary_size: int
    end_token_id: int


class ShardRecord(Config):
    """The documents of one split in one part of the text."""

    split: str
    name: str
    documents: int
    tokens: int = Field(description="End-of-text tokens counted.")
    bytes: int = Field(description="UTF-8 bytes of the text.")
    tokens_sha256: str
    index_sha256: str

    @property
    def tokens_file(self) -> str:
        return f"{self.name}.tokens"

    @property
    def index_file(self) -> str:
        return f"{self.name}.index"

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """(name, SHA-256) of each."""
        return (self.tokens_file, self.tokens_sha256), (self.index_file, self.index_sha256)


class SplitCounts(Config):
    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    @property
    def tokens_per_byte(self) -> float:
        return self.tokens / self.bytes if self.bytes else float("nan")


class Manifest(Config):
    """The whole story of a corpus folder."""

    format_version: int = FORMAT_VERSION
    identity: str = Field(description="Hash of the settings and the inputs: an equal one means there is nothing to do.")
    settings: dict[str, Any] = Field(description="The configuration without paths.")
    sources: tuple[SourceRecord, ...]
    tokenizer: TokenizerRecord
    origin: str
    licence: str
    dtype: str
    empty_documents: int = Field(description="Documents without any text, left out.")
    splits: dict[str, SplitCounts]
    shards: tuple[ShardRecord, ...]


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")


def read_manifest(folder: Path | str) -> Manifest:
    """The manifest of a corpus folder; what is not one, or is damaged, is a `DataError` that says so."""
    path = Path(folder) / MANIFEST_FILE
    if not path.is_file():
        raise DataError(f"{folder} is not a corpus (it has no {MANIFEST_FILE}); make one with: energylm corpus build")
    return read_versioned(path, Manifest, version=FORMAT_VERSION, what="a corpus", cure="build the corpus again")


def read_versioned(path: Path, kind: type[Kind], *, version: int, what: str, cure: str) -> Kind:
    """What a JSON file with a `format_version` holds; another version or damage is a `DataError` with the cure."""
    values = read_json(path)
    came = values.get("format_version") if isinstance(values, dict) else None
    if came != version:
        raise DataError(
            f"{path} is no manifest of {what} in format {version}, which this energylm reads (it says {came}); {cure}"
        )
    try:
        return kind.checked(values, origin=str(path))
    except ConfigError as error:
        raise DataError(f"{error}; the manifest is damaged: {cure}") from None


def is_intact(path: Path, sha256: str) -> bool:
    """Whether the file is there and has the recorded SHA-256."""
    return path.is_file() and sha256_of_file(path) == sha256


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
