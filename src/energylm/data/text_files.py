"""Texts of a file, as verbs that score, measure or probe take them: a line each, or a field of JSONL or TSV records."""

from collections.abc import Iterator
from pathlib import Path

from energylm.data.readers.jsonl import json_records, text_field
from energylm.data.readers.tsv import tsv_records
from energylm.data.readers.utf8 import decoded_blocks, decoded_lines
from energylm.errors import DataError

JSONL, TSV = (".jsonl", ".ndjson"), ".tsv"
STDIN = "-"


def existing(file: Path | str) -> Path:
    """The path of a file that is there; `-` is standard input."""
    path = Path("/dev/stdin") if str(file) == STDIN else Path(file)
    if not path.exists():
        raise DataError(f"{path} does not exist; give a text or JSONL file, or - for standard input")
    return path


def read_texts(file: Path, *, field: str) -> Iterator[str]:
    """The texts of a file: the named field of a JSONL record or a TSV row, else each line that is not blank."""
    yield from (text for _, text in numbered_texts(file, field=field))


def numbered_texts(file: Path, *, field: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of `read_texts`."""
    existing(file)
    if file.suffix in JSONL:
        for number, record in json_records(file):
            yield number, text_field(record, field, place=f"{file} line {number}")
    elif file.suffix == TSV:
        for number, record in tsv_records(file):
            yield number, text_field(record, field, place=f"{file} line {number}")
    else:
        yield from ((number, line) for number, line in decoded_lines(file) if line.strip())


def read_whole(file: Path, *, field: str) -> str:
    """All of a file as one text."""
    if file.suffix in (*JSONL, TSV):
        return "\n".join(read_texts(file, field=field))
    return "".join(decoded_blocks(existing(file)))
