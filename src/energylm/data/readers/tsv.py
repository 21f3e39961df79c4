"""Tab-separated columns whose first line names them. Quotes are text: a cell is what stands between two tabs."""

from collections.abc import Iterator
from pathlib import Path

from energylm.data.readers.utf8 import decoded_lines
from energylm.errors import DataError


def tsv_records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cell by column name) of each line after the first that is not blank."""
    names: list[str] = []
    for number, line in decoded_lines(path):
        cells = line.split("\t")
        if not names:
            names = cells
            if len(set(names)) < len(names):
                raise DataError(f"{path} names a column twice ({', '.join(names)}); name each column in the first line")
        elif line.strip():
            if len(cells) != len(names):
                raise DataError(
                    f"{path} line {number} has {len(cells)} tab-separated columns, but line 1 names {len(names)}: "
                    f"{', '.join(names)}"
                )
            yield number, dict(zip(names, cells, strict=True))
