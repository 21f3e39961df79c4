"""A document, where documents come from, and which split each falls into.

Text comes in pieces, so that a file of any size is read in flat memory. The split is a hash of the content:

    u = blake2b(seed, first 131,072 characters) / 2⁶⁴      test if u < t,  valid if u < t + v,  else train

So adding documents never moves others; equal documents always fall into the same split, and a duplicate never leaks
from train into test; and changing the valid fraction moves nothing in or out of test. Bakhtin et al. 2019 §4.1 ask for
distinct splits and do not say how.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from energylm.errors import DataError

LEADING_CHARACTERS = 1 << 17  # every piece of a document but its last has at least this many; its split depends on them
Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

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


def guarded(items: Iterable[Item], error_of: Callable[[Exception], DataError]) -> Iterator[Item]:
    """The items; what a library raises while it reads them becomes the error that `error_of` makes of it."""
    try:
        yield from items
    except Exception as error:
        raise error_of(error) from None


def split_of(text_start: str, *, valid_fraction: float, test_fraction: float, seed: int) -> Split:
    """The split of a document that begins with `text_start`."""
    content = text_start[:LEADING_CHARACTERS].encode()
    digest = hashlib.blake2b(content, digest_size=8, key=seed.to_bytes(8, "big")).digest()
    u = (int.from_bytes(digest, "big") >> 11) / 2**53  # 53 bits: a float64 below 1, always
    if u < test_fraction:
        return "test"
    return "valid" if u < test_fraction + valid_fraction else "train"
