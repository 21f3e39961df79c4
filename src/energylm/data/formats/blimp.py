"""BLiMP minimal pairs (Warstadt et al. 2020): two sentences that differ in one thing, one of them grammatical."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from energylm.data.text_files import json_records, text_field


@dataclass(frozen=True, slots=True)
class MinimalPair:
    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_blimp(path: Path | str) -> Iterator[MinimalPair]:
    for number, record in json_records(Path(path)):
        place = f"{path} line {number}"
        yield MinimalPair(
            good=text_field(record, "sentence_good", location=place),
            bad=text_field(record, "sentence_bad", location=place),
            paradigm=str(record.get("UID", Path(path).stem)),
            phenomenon=str(record.get("linguistics_term", "")),
        )
