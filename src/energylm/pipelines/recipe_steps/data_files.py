"""Files that recipes name: those that begin with `data:` lie in ENERGYLM_DATA; all are known by content, not place."""

from pathlib import Path

from energylm.config.places import data_folder
from energylm.errors import DataError
from energylm.files import sha256_of_file

DATA = "data:"


def place_of(path: str) -> Path:
    return data_folder() / path.removeprefix(DATA) if path.startswith(DATA) else Path(path)


def content_of(path: str) -> list[str]:
    """The hash of a file, or those of a folder's files in the order of their names."""
    place = place_of(path)
    if not place.exists():
        raise DataError(f"{place} does not exist; put the data set there, or set ENERGYLM_DATA to where it is")
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    return [sha256_of_file(file) for file in files]
