"""N-best lists of a recogniser: ESPnet-style JSON `{utterance: {ref, hyp_1: {score, text}, hyp_2: …}}`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.errors import DataError
from energylm.files import read_json


@dataclass(frozen=True, slots=True)
class Hypothesis:
    text: str
    score: float  # the recogniser's log-probability, higher = better


@dataclass(frozen=True, slots=True)
class NBest:
    """What was said, and what the recogniser thought, in its own order."""

    utterance: str
    reference: str
    hypotheses: tuple[Hypothesis, ...]


def read_nbest(path: Path | str) -> list[NBest]:
    table = read_json(path)
    if not isinstance(table, dict):
        raise DataError(f"{path} is a JSON {type(table).__name__}, expected {{utterance: {{ref, hyp_1, …}}}}")
    return [_utterance(path, name, entry) for name, entry in table.items()]


def _utterance(path: Path | str, name: str, entry: Any) -> NBest:
    try:
        keys = sorted((key for key in entry if key.startswith("hyp_")), key=lambda key: int(key.removeprefix("hyp_")))
        hypotheses = tuple(Hypothesis(str(entry[key]["text"]), float(entry[key]["score"])) for key in keys)
        reference = str(entry["ref"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}, utterance {name!r} is not {{ref, hyp_1: {{score, text}}, …}} ({error!r}); mend or drop it"
        ) from None
    if not hypotheses:
        raise DataError(f"{path}, utterance {name!r} has no hypothesis; expected hyp_1, hyp_2, …")
    return NBest(name, reference, hypotheses)
