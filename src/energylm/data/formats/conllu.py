"""CoNLL-U (Universal Dependencies): ten tab-separated columns a word, a blank line after each sentence.

A composite tag is UPOS, XPOS and FEATS together: hundreds of fine tags, a stand-in for CCG supertags (goyal2021 ch. 4
and 5). Multiword spans (`3-4`) and empty nodes (`8.1`) repeat or add to the words of a sentence and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from energylm.data.text_files import decoded_lines
from energylm.errors import DataError

_COLUMNS = 10


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    words: tuple[str, ...]
    universal_tags: tuple[str, ...]  # UPOS
    composite_tags: tuple[str, ...]  # UPOS/XPOS/FEATS


def read_conllu(path: Path | str) -> Iterator[TaggedSentence]:
    rows: list[list[str]] = []
    for number, line in decoded_lines(Path(path)):
        if not line.strip():
            yield from _sentence(rows)
            rows = []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != _COLUMNS:
                raise DataError(f"{path} line {number} has {len(columns)} tab-separated columns, expected {_COLUMNS}")
            if columns[0].isdecimal():
                rows.append(columns)
    yield from _sentence(rows)


def _sentence(rows: list[list[str]]) -> Iterator[TaggedSentence]:
    if rows:
        yield TaggedSentence(
            words=tuple(row[1] for row in rows),
            universal_tags=tuple(row[3] for row in rows),
            composite_tags=tuple("/".join(row[3:6]) for row in rows),
        )
