"""Text files, read in flat memory: UTF-8 by block or line, JSON Lines and TSV by record, and the texts in any of them.

A wrong byte is named by its offset, with a cure that fits what the file seems to be in. UTF-16 without a mark can pass
for UTF-8 full of NUL characters, so it is looked for in every file. Verbs that score, measure or probe texts take each
line, or a field of each record (`read_texts`).
"""

import codecs
import difflib
import json
import shlex
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from energylm.errors import DataError
from energylm.progress import say

JSONL, TSV = (".jsonl", ".ndjson"), ".tsv"
STDIN = "-"
BLOCK_BYTES = 1 << 20
_BEGINNING_BYTES = 1 << 12
_FEWEST_UNITS = 4  # of two bytes, to tell UTF-16 without a mark
_NUL_SHARE = 0.7  # of their upper halves: Western text in UTF-16 has hardly any other
_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def decoded_blocks(path: Path) -> Iterator[str]:
    """The text of a file in blocks of about a megabyte (a byte-order mark at the start is not text)."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0  # of the first byte that the decoder has not turned into text yet
    with open(path, "rb") as file:
        beginning = _checked_beginning(path, file)
        while True:
            block = file.read(BLOCK_BYTES)
            pending, last = len(decoder.getstate()[0]), len(block) < BLOCK_BYTES
            try:
                text = decoder.decode(block, final=last)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset - pending + error.start, beginning) from None
            if offset == 0:
                text = text.removeprefix("\ufeff")
            if text:
                yield text
            if last:
                return
            offset += len(block)


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its line end) of each line."""
    offset = 0
    with open(path, "rb") as file:
        beginning = _checked_beginning(path, file)
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + error.start, beginning, line=number) from None
            offset += len(line)
            yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def json_records(path: Path, *, cure: str = "mend the line, or drop it") -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank; `cure` is for a line that is no JSON."""
    for number, line in decoded_lines(path):
        if not line.strip():
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


def tsv_records(path: Path, *, most_broken: float | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cell by column name) of each line that is not blank; the first line names the columns. Quotes are
    text: a cell is what stands between two tabs. A line with other columns is an error; with `most_broken` such lines
    are left out and said, unless they are more than that share of all."""
    lines = decoded_lines(path)
    names = next(lines, (0, ""))[1].split("\t")
    if len(set(names)) < len(names):
        raise DataError(f"{path} names a column twice ({', '.join(names)}); name each column in the first line")
    rows, broken = 0, []
    for number, line in lines:
        if not line.strip():
            continue
        rows += 1
        cells = line.split("\t")
        if len(cells) == len(names):
            yield number, dict(zip(names, cells, strict=True))
        elif most_broken is None:
            raise DataError(
                f"{path} line {number} has {len(cells)} tab-separated columns, but line 1 names {len(names)}: "
                f"{', '.join(names)}"
            )
        else:
            broken.append(number)
    if len(broken) > max(1, (most_broken or 0) * rows):
        raise DataError(
            f"{path}: {len(broken):,} of {rows:,} lines (the first is {broken[0]}) do not have the {len(names)} "
            "tab-separated columns that line 1 names; mend the file"
        )
    if broken:
        say(f"{path}: {len(broken):,} of {rows:,} lines left out, they have other columns than line 1: {broken[:5]}")


def text_field(record: dict[str, Any], field: str, *, location: str) -> str:
    """`record[field]`, which must be a string."""
    if field not in record:
        raise DataError(f"{location} has no field {field!r}; {nearest_field(field, record)}")
    value = record[field]
    if not isinstance(value, str):
        raise DataError(f"{location}: field {field!r} is {value!r:.40}, expected text; {nearest_field(field, record)}")
    return value


def nearest_field(field: str, fields: Iterable[str]) -> str:
    """The cure for a wrong field name."""
    others = [name for name in fields if name != field]
    near = difflib.get_close_matches(field, others, n=1, cutoff=0.5)
    if near:
        return f"did you mean --field {near[0]}?"
    return f"name one with --field; it has: {', '.join(others) or 'no other field'}"


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
    if file.suffix in (*JSONL, TSV):
        for number, record in tsv_records(file) if file.suffix == TSV else json_records(file):
            yield number, text_field(record, field, location=f"{file} line {number}")
    else:
        yield from ((number, line) for number, line in decoded_lines(file) if line.strip())


def read_whole(file: Path, *, field: str) -> str:
    """All of a file as one text."""
    if file.suffix in (*JSONL, TSV):
        return "\n".join(read_texts(file, field=field))
    return "".join(decoded_blocks(existing(file)))


def _checked_beginning(path: Path, file: BufferedReader) -> bytes:
    """The first bytes of a file, unread (it may be standard input); a file in another Unicode encoding is refused."""
    beginning = file.peek(_BEGINNING_BYTES)[:_BEGINNING_BYTES]
    if encoding := _wide_encoding(beginning):
        raise DataError(f"{path} is in {encoding}, not UTF-8; convert it: {_conversion(path, encoding)}")
    return beginning


def _wide_encoding(beginning: bytes) -> str | None:
    """UTF-16 or UTF-32, if a file that begins so is in one: by its mark, or because every other byte of it is NUL."""
    for mark, encoding in _MARKS:
        if beginning.startswith(mark):
            return encoding
    units = len(beginning) // 2
    even, odd = beginning[: 2 * units : 2], beginning[1::2]
    if units >= _FEWEST_UNITS:
        for upper, lower, encoding in ((odd, even, "UTF-16LE"), (even, odd, "UTF-16BE")):
            if upper.count(0) > _NUL_SHARE * units and not lower.count(0):
                return encoding
    return None


def _not_utf8(path: Path, offset: int, beginning: bytes, *, line: int | None = None) -> DataError:
    what = f"{path if line is None else f'{path} line {line}'}: byte {offset} is not UTF-8"
    if b"\0" in beginning:
        return DataError(f"{what}, and there are NUL bytes: this is UTF-16 without a mark, or no text; leave it out")
    # Windows' code page is Latin-1 with letters and quotes where that has none.
    return DataError(f"{what}; convert the file, e.g. {_conversion(path, 'WINDOWS-1252')}")


def _conversion(path: Path, encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > fixed.txt"
