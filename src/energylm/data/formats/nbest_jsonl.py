"""N-best lists in JSON Lines: `{"utterance": …, "reference": …, "hypotheses": [{"text": …, "score": …}, …]}` a line.

`id` is read for `utterance` and `ref` for `reference`; a list without a name is called by its line, and a reference may
be absent.
"""

from pathlib import Path
from typing import Any

from energylm.data.formats.nbest import NBest, hypothesis, nbest
from energylm.data.readers.jsonl import json_records
from energylm.errors import DataError


def read_nbest_jsonl(path: Path | str) -> list[NBest]:
    return [_list(record, number, f"{path} line {number}") for number, record in json_records(Path(path))]


def _list(record: dict[str, Any], number: int, place: str) -> NBest:
    name = record.get("utterance", record.get("id", number))
    reference = record.get("reference", record.get("ref"))
    entries = record.get("hypotheses")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f'{place} has no list "hypotheses" of {{"text": …, "score": …}}; it has: {", ".join(record)}')
    if not isinstance(reference, str | None):
        raise DataError(f"{place}: the reference is {reference!r:.40}, expected text")
    found = (
        hypothesis(entry.get("text"), entry.get("score"), place=f"{place}, hypothesis {rank}")
        for rank, entry in enumerate(entries, start=1)
    )
    return nbest(str(name), reference, found, place=place)
