"""A Hugging Face data set, streamed: a hub name, a folder written by `datasets`, or a folder of files it can read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.document import Document, Fingerprint
from energylm.data.readers.jsonl import nearest_field, text_field
from energylm.errors import DataError
from energylm.files import sha256_of_file, sha256_of_json

_SAVED_MARKERS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in its folder
_ROWS_AT_ONCE = 256


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
        """Of a local folder: its files. Of a hub name: the commit it stands at, or the offline copy's description."""
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
        for rows in dataset.select_columns([self.field]).iter(batch_size=_ROWS_AT_ONCE):
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
            return datasets.load_dataset(
                self.location, self.config, split=self.split, revision=self.revision, streaming=True
            )
        except (OSError, ValueError) as error:  # the families that `datasets` raises for names, splits and the network
            reason = " ".join(str(error).split())
            raise DataError(
                f"data set {self.location!r} cannot be opened ({reason:.200}); check the name, the split, the network, "
                "or give a local folder"
            ) from None

    def _commit(self) -> str:
        if self.revision is not None:
            return self.revision
        import httpx
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            return str(HfApi().dataset_info(self.location).sha)
        except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError):
            return repr(self._load().info.splits)
