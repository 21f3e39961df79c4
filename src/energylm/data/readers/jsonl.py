"""JSON Lines: a JSON object a line; a named field holds the text."""

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.document import Document, FileSource
from energylm.data.readers.utf8 import decoded_lines
from energylm.errors import DataError


@dataclass(frozen=True)
class JsonLines(FileSource):
    field: str = "text"

    def documents(self) -> Iterator[Document]:
        for number, record in json_records(self.path, cure="mend the line, or read the file with --format lines"):
            yield Document(
                f"{self.name}:{number}", (text_field(record, self.field, place=f"{self.path} line {number}"),)
            )


def json_records(path: Path, *, cure: str = "mend the line, or drop it") -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank; `cure` is for a line that is no JSON."""
    for number, line in decoded_lines(path):
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is not JSON ({error.msg} at column {error.colno}); {cure}") from None
        if not isinstance(record, dict):
            raise DataError(
                f'{path} line {number} is a JSON {type(record).__name__}, expected an object such as {{"text": "…"}}'
            )
        yield number, record


def text_field(record: dict[str, Any], field: str, *, place: str) -> str:
    """`record[field]`, which must be a string."""
    if field not in record:
        raise DataError(f"{place} has no field {field!r}; {nearest_field(field, record)}")
    value = record[field]
    if not isinstance(value, str):
        raise DataError(f"{place}: field {field!r} is {value!r:.40}, expected text; {nearest_field(field, record)}")
    return value


def nearest_field(field: str, known: Iterable[str]) -> str:
    """The cure for a wrong field name."""
    others = [name for name in known if name != field]
    near = difflib.get_close_matches(field, others, n=1, cutoff=0.5)
    if near:
        return f"did you mean --field {near[0]}?"
    return f"name one with --field; it has: {', '.join(others) or 'no other field'}"
