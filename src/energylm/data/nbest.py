"""N-best lists from any of four formats, chosen by the file's name or by what it holds, with references added.

`espnet`  JSON  `{utterance: {ref, hyp_1: {score, text}, …}}`
`jsonl`   `{"utterance": …, "reference": …, "hypotheses": [{"text": …, "score": …}, …]}` a line
`tsv`     `utterance`, `score`, `text`, `reference`, a hypothesis a line
`moses`   `id ||| hypothesis ||| features ||| score` a line

`-` is standard input, whose format is told by what it holds.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from energylm.config.cloze import STDIN, NBestFormat
from energylm.data.formats.nbest import Lines, NBest, read_nbest
from energylm.data.formats.nbest_jsonl import read_nbest_jsonl
from energylm.data.formats.nbest_moses import SEPARATOR, read_nbest_moses
from energylm.data.formats.nbest_tsv import read_nbest_tsv
from energylm.data.text_files import decoded_lines
from energylm.errors import DataError
from energylm.randomness import derive_seed, shuffled

READERS: dict[NBestFormat, Callable[[Lines, str], list[NBest]]] = {
    "espnet": read_nbest,
    "jsonl": read_nbest_jsonl,
    "tsv": read_nbest_tsv,
    "moses": read_nbest_moses,
}
STDIN_NAME = "standard input"
_ENDINGS: dict[str, NBestFormat] = {".json": "espnet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}


def read_lists(
    path: Path | str, *, form: NBestFormat | None = None, references: Path | str | None = None
) -> list[NBest]:
    """All lists of a file. `references` is a text file with a line for each list (for each id of a Moses file)."""
    name = name_of(path)
    lines = _lines(path, expected="a file of n-best lists (ESPnet JSON, JSONL, TSV or Moses), or - for standard input")
    form = form or format_of(lines, name)
    lists = READERS[form](lines, name)
    if not lists:
        raise DataError(f"{name} holds no n-best list; expected the format {form!r}")
    return lists if references is None else _with_references(lists, references, by_id=form == "moses")


def name_of(path: Path | str) -> str:
    """What messages call a file of lists."""
    return STDIN_NAME if str(path) == STDIN else str(path)


def format_of(lines: Lines, name: str) -> NBestFormat:
    """By the ending of the name, else by the first line."""
    if (ending := Path(name).suffix) in _ENDINGS:
        return _ENDINGS[ending]
    first = next((line for _, line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        return "jsonl" if _is_list(first) else "espnet"
    if SEPARATOR in first:
        return "moses"
    if "\t" in first:
        return "tsv"
    raise DataError(
        f"{name}: its name and its first line tell no format of n-best lists; name one of {', '.join(READERS)} with "
        "--format"
    )


def _is_list(line: str) -> bool:
    """Whether a line is the JSON of one n-best list."""
    try:
        return "hypotheses" in json.loads(line)
    except json.JSONDecodeError:
        return False


def _lines(path: Path | str, *, expected: str) -> list[tuple[int, str]]:
    file = Path("/dev/stdin" if str(path) == STDIN else path)
    if not file.exists() or file.is_dir():
        raise DataError(f"{name_of(path)} {'is a folder' if file.is_dir() else 'does not exist'}; give {expected}")
    return list(decoded_lines(file))


def sample_lists(lists: Sequence[NBest], count: int | None, *, seed: int) -> list[NBest]:
    """`count` lists chosen at random, in their own order; all of them where there are no more."""
    if count is None or count >= len(lists):
        return list(lists)
    chosen = shuffled(np.arange(count), len(lists), seed=derive_seed(seed, "n-best lists"))
    return [lists[place] for place in sorted(chosen.tolist())]


def _with_references(lists: Sequence[NBest], path: Path | str, *, by_id: bool) -> list[NBest]:
    lines = [line for _, line in _lines(path, expected="a file of references, a line for each list")]
    places = [int(one.utterance) for one in lists] if by_id else list(range(len(lists)))
    if max(places) >= len(lines) or (not by_id and len(lines) != len(lists)):
        raise DataError(
            f"{path} has {len(lines):,} references but {max(places) + 1:,} are needed, a line for each list; "
            "give the references of this very set"
        )
    return [replace(one, reference=lines[place]) for one, place in zip(lists, places, strict=True)]
