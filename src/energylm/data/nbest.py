"""N-best lists from any of four formats, chosen by the file's name or by what it holds, with references added.

`espnet`  JSON  `{utterance: {ref, hyp_1: {score, text}, …}}`
`jsonl`   `{"utterance": …, "reference": …, "hypotheses": [{"text": …, "score": …}, …]}` a line
`tsv`     `utterance`, `score`, `text`, `reference`, a hypothesis a line
`moses`   `id ||| hypothesis ||| features ||| score` a line
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from energylm.config.rerank import NBestFormat
from energylm.data.formats.nbest import NBest, read_nbest
from energylm.data.formats.nbest_jsonl import read_nbest_jsonl
from energylm.data.formats.nbest_moses import SEPARATOR, read_nbest_moses
from energylm.data.formats.nbest_tsv import read_nbest_tsv
from energylm.data.readers.utf8 import decoded_lines
from energylm.errors import DataError
from energylm.randomness import derive_seed, shuffled

READERS: dict[NBestFormat, Callable[[Path], list[NBest]]] = {
    "espnet": read_nbest,
    "jsonl": read_nbest_jsonl,
    "tsv": read_nbest_tsv,
    "moses": read_nbest_moses,
}
_ENDINGS: dict[str, NBestFormat] = {".json": "espnet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}


def read_lists(
    path: Path | str, *, form: NBestFormat | None = None, references: Path | str | None = None
) -> list[NBest]:
    """All lists of a file. `references` is a text file with a line for each list (for each id of a Moses file)."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file of n-best lists (ESPnet JSON, JSONL, TSV or Moses)")
    form = form or format_of(path)
    lists = READERS[form](path)
    if not lists:
        raise DataError(f"{path} holds no n-best list; expected the format {form!r}")
    return lists if references is None else _with_references(lists, Path(references), by_id=form == "moses")


def format_of(path: Path) -> NBestFormat:
    """By the ending, else by the first line."""
    if path.suffix in _ENDINGS:
        return _ENDINGS[path.suffix]
    first = next((line for _, line in decoded_lines(path) if line.strip()), "")
    if SEPARATOR in first:
        return "moses"
    if "\t" in first:
        return "tsv"
    raise DataError(
        f"{path}: its name and its first line tell no format of n-best lists; name one of {', '.join(READERS)} with "
        "--format"
    )


def sample_lists(lists: Sequence[NBest], count: int | None, *, seed: int) -> list[NBest]:
    """`count` lists chosen at random, in their own order; all of them where there are no more."""
    if count is None or count >= len(lists):
        return list(lists)
    chosen = shuffled(np.arange(count), len(lists), seed=derive_seed(seed, "n-best lists"))
    return [lists[place] for place in sorted(chosen.tolist())]


def _with_references(lists: Sequence[NBest], path: Path, *, by_id: bool) -> list[NBest]:
    lines = [line for _, line in decoded_lines(path)]
    places = [int(one.utterance) for one in lists] if by_id else list(range(len(lists)))
    if max(places) >= len(lines) or (not by_id and len(lines) != len(lists)):
        raise DataError(
            f"{path} has {len(lines):,} references but {max(places) + 1:,} are needed, a line for each list; "
            "give the references of this very set"
        )
    return [replace(one, reference=lines[place]) for one, place in zip(lists, places, strict=True)]
