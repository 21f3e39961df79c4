"""N-best lists in JSON Lines: `{"utterance": …, "reference": …, "hypotheses": [{"text": …, "score": …}, …]}` a line.

`id` is read for `utterance` and `ref` for `reference`; a list without a name is called by its line, and a reference may
be absent. No two lists have the same name.
"""

from typing import Any

from energylm.data.formats.nbest import Lines, NBest, hypothesis, nbest, parsed_json
from energylm.errors import DataError


def read_nbest_jsonl(lines: Lines, name: str) -> list[NBest]:
    lists: dict[str, NBest] = {}
    line_of: dict[str, int] = {}
    for number, line in lines:
        if not line.strip():
            continue
        place = f"{name} line {number}"
        record = parsed_json(line, place=place)
        if not isinstance(record, dict):
            raise DataError(f'{place} is a JSON {type(record).__name__}, expected {{"hypotheses": […]}}')
        found = _list(record, number, place)
        if found.utterance in lists:
            raise DataError(
                f"{place}: utterance {found.utterance!r} was already there in line {line_of[found.utterance]}; give "
                "each list its own name, and all hypotheses of an utterance in one line"
            )
        lists[found.utterance], line_of[found.utterance] = found, number
    return list(lists.values())


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
