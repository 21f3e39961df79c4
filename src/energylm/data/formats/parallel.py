"""Parallel text: two plain files, line n of one is the translation of line n of the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from energylm.data.text_files import decoded_lines
from energylm.errors import DataError


@dataclass(frozen=True, slots=True)
class TranslationPair:
    source: str
    target: str


def read_parallel(source_path: Path | str, target_path: Path | str) -> Iterator[TranslationPair]:
    """Pairs in order. Files of unequal length are not parallel: an error at the line where one ends."""
    lines = zip_longest(decoded_lines(Path(source_path)), decoded_lines(Path(target_path)))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            shorter, longer = (source_path, target_path) if source is None else (target_path, source_path)
            raise DataError(
                f"{shorter} ends after {number - 1} lines but {longer} goes on with line {number}; parallel files "
                "need as many lines each"
            )
        yield TranslationPair(source[1], target[1])
