"""UTF-8 text from a file in flat memory, by line or by block; a wrong byte is named by its offset.

The cure fits what the file seems to be in. UTF-16 without a mark can pass for UTF-8 full of NUL characters, so it is
looked for in every file.
"""

import codecs
import shlex
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from energylm.errors import DataError

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
