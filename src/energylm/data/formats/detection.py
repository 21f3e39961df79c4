"""Human or machine: JSON `{original: […], sampled: […]}` (a machine's beside each human's), or texts in JSON Lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.text_files import decoded_blocks, json_records, text_field
from energylm.errors import DataError


@dataclass(frozen=True, slots=True)
class DetectionPair:
    """A human text, and what a machine wrote from its beginning."""

    original: str
    sampled: str


def read_detection_pairs(path: Path | str) -> list[DetectionPair]:
    table = _json(Path(path))
    columns = []
    for name in ("original", "sampled"):
        column = table.get(name) if isinstance(table, dict) else None
        if not isinstance(column, list) or not all(isinstance(text, str) for text in column):
            raise DataError(f"{path} has no list of texts {name!r}; expected {{original: […], sampled: […]}}")
        columns.append(column)
    originals, samples = columns
    if len(originals) != len(samples):
        raise DataError(f"{path} has {len(originals)} originals but {len(samples)} samples; expected one for each")
    return [DetectionPair(original, sampled) for original, sampled in zip(originals, samples, strict=True)]


def read_texts(path: Path | str, *, field: str = "text") -> Iterator[str]:
    """The texts of a JSON Lines file, all by one kind of writer; the file's name says which."""
    for number, record in json_records(Path(path)):
        yield text_field(record, field, location=f"{path} line {number}")


def _json(path: Path) -> Any:
    try:
        return json.loads("".join(decoded_blocks(path)))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}); a JSON object a line belongs into a .jsonl file"
        ) from None
