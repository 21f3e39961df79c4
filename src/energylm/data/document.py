"""A document and where documents come from. Text comes in pieces, so that a file of any size is read in flat memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from energylm.errors import DataError
from energylm.files import sha256_of_file

LEADING_CHARACTERS = 1 << 17  # every piece of a document but its last has at least this many; its split depends on them

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Document:
    """`name` says where it was found (file, file:line …); the `pieces`, joined, are its text and are read once."""

    name: str
    pieces: Iterable[str]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a source held when it was read: a hash of all of it, and its size."""

    sha256: str
    bytes: int


class Source(Protocol):
    """Something that yields documents, again and again in the same order."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str:
        """Where the text comes from, if the reader knows; else empty."""
        ...

    @property
    def licence(self) -> str: ...

    @property
    def text_bytes(self) -> int | None:
        """About how much text there is, to tell the time left; None where only reading tells."""
        ...

    def fingerprint(self) -> Fingerprint: ...

    def documents(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class FileSource:
    """Base of the readers of one file. `name` is relative to the folder the user gave: no machine paths in a corpus."""

    path: Path
    name: str
    origin: str = ""
    licence: str = ""

    @property
    def text_bytes(self) -> int | None:
        return self.path.stat().st_size

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(sha256_of_file(self.path), self.path.stat().st_size)


def guarded(items: Iterable[Item], error_of: Callable[[Exception], DataError]) -> Iterator[Item]:
    """The items; what a library raises while it reads them becomes the error that `error_of` makes of it."""
    try:
        yield from items
    except Exception as error:
        raise error_of(error) from None
