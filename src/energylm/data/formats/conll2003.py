"""CoNLL-2003 named entities: a word a line with its part of speech, chunk and entity tag; a blank line ends a sentence.

The published files tag in IOB1 (`B-` only where two entities of one type touch); `iob1_to_iob2` gives every entity its
`B-`, which is what span scorers expect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from energylm.data.text_files import decoded_lines
from energylm.errors import DataError

_DOCUMENT_START = "-DOCSTART-"
_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class EntitySentence:
    words: tuple[str, ...]
    parts_of_speech: tuple[str, ...]
    chunks: tuple[str, ...]
    entities: tuple[str, ...]


def read_conll2003(path: Path | str) -> Iterator[EntitySentence]:
    """Sentences in order; document marks are left out."""
    rows: list[list[str]] = []
    for number, line in decoded_lines(Path(path)):
        columns = line.split()
        if not columns:
            yield from _sentence(rows)
            rows = []
        elif columns[0] != _DOCUMENT_START:
            if len(columns) != _COLUMNS:
                raise DataError(f"{path} line {number} has {len(columns)} columns, expected word, POS, chunk, entity")
            rows.append(columns)
    yield from _sentence(rows)


def iob1_to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same spans with `B-` at the start of every one."""
    previous, converted = "O", []
    for tag in tags:
        starts = tag.startswith("I-") and previous[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if starts else tag)
        previous = tag
    return tuple(converted)


def _sentence(rows: list[list[str]]) -> Iterator[EntitySentence]:
    if rows:
        yield EntitySentence(*(tuple(column) for column in zip(*rows, strict=True)))
