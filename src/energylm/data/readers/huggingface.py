"""A Hugging Face data set, streamed: a hub name, a folder written by `datasets`, or a folder of files it can read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.document import Document, Fingerprint, guarded
from energylm.data.readers.jsonl import nearest_field, text_field
from energylm.errors import DataError
from energylm.files import sha256_of_file, sha256_of_json

_SAVED_MARKERS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in its folder
_ROWS_AT_ONCE = 256
HUB_SECONDS = 5.0  # to wait for the hub's answer


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
        row = 0
        for rows in guarded(dataset.select_columns([self.field]).iter(batch_size=_ROWS_AT_ONCE), self._unreadable):
            for text in rows[self.field]:
                place = f"data set {self.location} row {row}"
                yield Document(f"{self.name}:{row}", (text_field({self.field: text}, self.field, place=place),))
                row += 1

    def _load(self) -> Any:
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

    def _unreadable(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(
            f"data set {self.location!r} cannot be opened ({reason:.200}); check the name, the split, the network, or "
            "give a local folder"
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
            why = " ".join(str(error).split()) if answered else "it is not here, and the hub cannot be reached"
            raise DataError(
                f"data set {self.location!r} cannot be opened ({why:.120}); check the name and the network, or give a "
                "local folder"
            ) from None

    def _has_copy(self) -> bool:
        """Whether anything of the data set was fetched before."""
        from datasets.config import HF_DATASETS_CACHE
        from huggingface_hub.constants import HF_HUB_CACHE

        copies = (
            Path(HF_HUB_CACHE) / f"datasets--{self.location.replace('/', '--')}",
            Path(HF_DATASETS_CACHE) / self.location.replace("/", "___"),
        )
        return any(copy.is_dir() for copy in copies)
