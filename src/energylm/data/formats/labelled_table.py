"""Labelled sentences in tables with named columns: TSV whose first line names them, or JSON Lines with fields.

GLUE's own files and those of most sentence tasks have this form under different names, so each column is a list of
names of which the first that is there is taken. Rows of a TSV that do not have the first line's number of cells are
left out and counted, as GLUE's own files hold a few; where they are many, the file is not what it claims to be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.data.text_files import decoded_lines, json_records
from energylm.errors import DataError
from energylm.progress import say

MOST_BROKEN = 0.01  # of the rows of a TSV


@dataclass(frozen=True)
class Columns:
    """Names that a column may have, in the order of preference; `second` is empty for tasks of one sentence."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...]

    @property
    def all(self) -> list[tuple[str, ...]]:
        return [names for names in (self.first, self.second, self.label) if names]


def labelled_rows(path: Path, columns: Columns) -> Iterator[tuple[int, str, str | None, str]]:
    """(line, first text, second text or None, label as it is written) of every row."""
    records = json_records(path) if path.suffix == ".jsonl" else _tsv_records(path, columns)
    names: list[str] = []
    for number, record in records:
        names = names or [_present(names_of, record, path) for names_of in columns.all]
        cells = [_cell(record, name, path, number) for name in names]
        yield number, cells[0], cells[1] if columns.second else None, cells[-1]


def has_named_columns(path: Path, columns: Columns) -> bool:
    """Whether the file is JSON Lines, or its first line names the label or a text."""
    if path.suffix == ".jsonl":
        return True
    _, first_line = next(decoded_lines(path), (0, ""))
    return not {name for names in columns.all for name in names}.isdisjoint(first_line.split("\t"))


def _tsv_records(path: Path, columns: Columns) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = decoded_lines(path)
    _, first_line = next(lines, (0, ""))
    names = first_line.split("\t")
    rows, broken = 0, []
    for number, line in lines:
        if not line.strip():
            continue
        rows += 1
        cells = line.split("\t")
        if len(cells) == len(names):
            yield number, dict(zip(names, cells, strict=True))
        else:
            broken.append(number)
    if len(broken) > max(1, MOST_BROKEN * rows):
        raise DataError(
            f"{path}: {len(broken):,} of {rows:,} lines (the first is {broken[0]}) do not have the {len(names)} "
            "tab-separated columns that line 1 names; mend the file"
        )
    if broken:
        say(f"{path}: {len(broken):,} of {rows:,} lines left out, they have other columns than line 1: {broken[:5]}")


def _present(wanted: Sequence[str], record: Mapping[str, Any], path: Path) -> str:
    for name in wanted:
        if name in record:
            return name
    raise DataError(f"{path} has no column {' or '.join(wanted)}; it has: {', '.join(record)}")


def _cell(record: Mapping[str, Any], name: str, path: Path, number: int) -> str:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{path} line {number}: column {name} is {value!r:.40}, expected text or a number")
    return str(value)
