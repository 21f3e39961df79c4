"""UTF-8 text from a file in flat memory, by line or by block; a wrong byte is named by its offset."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from energylm.errors import DataError

BLOCK_BYTES = 1 << 20


def decoded_blocks(path: Path) -> Iterator[str]:
    """The text of a file in blocks of about a megabyte (a byte-order mark at the start is not text)."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0  # of the first byte that the decoder has not turned into text yet
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK_BYTES)
            pending, last = len(decoder.getstate()[0]), len(block) < BLOCK_BYTES
            try:
                text = decoder.decode(block, final=last)
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset - pending + error.start) from None
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
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset + error.start, line=number) from None
            offset += len(line)
            yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def not_utf8(path: Path, offset: int, *, line: int | None = None) -> DataError:
    place = f"{path}" if line is None else f"{path} line {line}"
    return DataError(
        f"{place}: byte {offset} is not UTF-8; convert the file, e.g. iconv -f latin1 -t utf-8 {path.name} > fixed.txt"
    )
