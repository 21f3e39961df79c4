"""N-best lists of a recogniser: ESPnet-style JSON `{utterance: {ref, hyp_1: {score, text}, hyp_2: …}}`.

What an n-best list is, is defined here; `nbest_jsonl`, `nbest_tsv` and `nbest_moses` read the same from other formats,
and `data.nbest` picks the reader. A reader gets the lines of a file, with their numbers, and what messages call it.
Nothing that comes twice (an utterance, a key of JSON) is read as if it came once.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from energylm.errors import DataError

Lines = Sequence[tuple[int, str]]  # (number from 1, text) of each


@dataclass(frozen=True, slots=True)
class Hypothesis:
    text: str
    score: float  # the recogniser's log-probability, higher = better


@dataclass(frozen=True, slots=True)
class NBest:
    """What was said (None where nobody wrote it down), and what the recogniser thought, in its own order."""

    utterance: str
    reference: str | None
    hypotheses: tuple[Hypothesis, ...]


def read_nbest(lines: Lines, name: str) -> list[NBest]:
    table = parsed_json("\n".join(line for _, line in lines), place=name)
    if not isinstance(table, dict):
        raise DataError(f"{name} is a JSON {type(table).__name__}, expected {{utterance: {{ref, hyp_1, …}}}}")
    return [_utterance(f"{name}, utterance {utterance!r}", utterance, entry) for utterance, entry in table.items()]


def parsed_json(text: str, *, place: str) -> Any:
    """JSON in which no key of an object comes twice: of two entries Python would keep the last, without a word."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise DataError(f"{place}: key {twice!r} comes twice in one object; rename one of them, or drop it")
        return record

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        line = "" if error.lineno == 1 else f"line {error.lineno}, "
        raise DataError(
            f"{place} is not JSON ({error.msg} at {line}column {error.colno}); mend or drop what stands there, or name "
            "the file's format with --format (espnet, jsonl, tsv or moses)"
        ) from None


def hypothesis(text: Any, score: Any, *, place: str) -> Hypothesis:
    """One hypothesis, if it has a text and a finite score; else an error that names its place."""
    if not isinstance(text, str):
        raise DataError(f"{place} has no text (came {text!r:.40}); mend or drop it")
    try:
        value = float(score)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{place} has no score of the recogniser (came {score!r:.40}), so there is nothing to add a language model "
            "to; write the score in, or drop the hypothesis"
        )
    return Hypothesis(text, value)


def nbest(utterance: str, reference: str | None, hypotheses: Iterable[Hypothesis], *, place: str) -> NBest:
    found = tuple(hypotheses)
    if not found:
        raise DataError(f"{place} has no hypothesis; drop it, or write its hypotheses in")
    return NBest(utterance, reference, found)


def _utterance(place: str, name: str, entry: Any) -> NBest:
    if not isinstance(entry, dict):
        raise DataError(f"{place} is {entry!r:.40}, expected {{ref, hyp_1: {{score, text}}, …}}")
    reference = entry.get("ref")
    if not isinstance(reference, str | None):
        raise DataError(f"{place}: the reference is {reference!r:.40}, expected text")
    numbered: dict[int, Hypothesis] = {}
    for key, value in entry.items():
        rank = key.removeprefix("hyp_")
        if key != rank:
            if not rank.isdecimal() or not isinstance(value, dict):
                raise DataError(f"{place}: {key!r} is no hypothesis; expected hyp_1: {{score, text}}, hyp_2: …")
            if int(rank) in numbered:
                raise DataError(f"{place}: {key!r} is hypothesis {int(rank)} a second time; number each by itself")
            numbered[int(rank)] = hypothesis(value.get("text"), value.get("score"), place=f"{place}, {key}")
    return nbest(name, reference, (numbered[rank] for rank in sorted(numbered)), place=place)
