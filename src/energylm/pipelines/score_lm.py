"""Score texts, or windows of one long text, with a language model: `energylm lm score`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.data.readers.jsonl import json_records, text_field
from energylm.data.readers.tsv import tsv_records
from energylm.data.readers.utf8 import decoded_blocks, decoded_lines
from energylm.errors import DataError
from energylm.progress import progress

if TYPE_CHECKING:  # so that checking the inputs needs no torch
    from energylm.bundles.language_model import LanguageModel
    from energylm.bundles.text_results import SequenceScore
    from energylm.estimators.perplexity import Perplexity

TEXTS_AT_ONCE = 64  # scored together, so that results appear while the rest is still being read
JSONL, TSV = (".jsonl", ".ndjson"), ".tsv"


@dataclass(frozen=True)
class LMScores:
    scores: "list[SequenceScore]"
    perplexity: "Perplexity"

    def to_json(self) -> dict[str, Any]:
        return {"perplexity": self.perplexity.to_json(), "scores": [score.to_json() for score in self.scores]}


def score_lm(
    model: "LanguageModel",
    file: Path,
    *,
    field: str = "text",
    windows: int | None = None,
    length: int = 160,
    prefix_tokens: int = 0,
    eos: bool = False,
    on_score: "Callable[[SequenceScore], None]" = lambda score: None,
) -> LMScores:
    """Score every text of `file` (a line each, or a JSONL or TSV `field`), or `windows` windows of `length` tokens of
    it all.

    `on_score` sees each score as soon as it is known, in the order of the file.
    """
    convention = model.convention(prefix_tokens=prefix_tokens, eos=eos, of_ids=windows is not None)
    sequences: Iterator[Any] = read_texts(file, field=field)
    if windows is not None:
        sequences = iter(
            even_windows(model.encode(read_whole(file, field=field)), windows=windows, length=length, file=file)
        )
        convention = f"{windows} evenly spaced windows of {length} tokens, {convention}"
    scores: list[SequenceScore] = []
    with progress("scoring", total=windows, unit="text") as bar:
        while group := [sequence for _, sequence in zip(range(TEXTS_AT_ONCE), sequences, strict=False)]:
            for score in model.score(group, prefix_tokens=prefix_tokens, eos=eos):
                scores.append(score)
                on_score(score)
            bar.advance(len(group))
    if not scores:
        raise DataError(f"{file} holds no text; give a file with one text a line")
    return LMScores(scores, model.perplexity_of(scores, convention=convention))


def existing(file: Path) -> Path:
    if not file.exists():
        raise DataError(f"{file} does not exist; give a text or JSONL file, or - for standard input")
    return file


def read_texts(file: Path, *, field: str) -> Iterator[str]:
    """The texts of a file: the named field of a JSONL record or a TSV row, else each line that is not blank."""
    yield from (text for _, text in numbered_texts(file, field=field))


def numbered_texts(file: Path, *, field: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of `read_texts`."""
    existing(file)
    if file.suffix in JSONL:
        for number, record in json_records(file):
            yield number, text_field(record, field, place=f"{file} line {number}")
    elif file.suffix == TSV:
        for number, record in tsv_records(file):
            yield number, text_field(record, field, place=f"{file} line {number}")
    else:
        yield from ((number, line) for number, line in decoded_lines(file) if line.strip())


def read_whole(file: Path, *, field: str) -> str:
    """All of a file as one text."""
    if file.suffix in (*JSONL, TSV):
        return "\n".join(read_texts(file, field=field))
    return "".join(decoded_blocks(existing(file)))


def even_windows(tokens: Sequence[int], *, windows: int, length: int, file: Path) -> list[list[int]]:
    """Windows that do not overlap, from the very beginning to the very end of `tokens`."""
    if len(tokens) < windows * length:
        raise DataError(
            f"{file} has {len(tokens):,} tokens, {windows} windows of {length} need {windows * length:,}; "
            "ask for fewer or shorter windows"
        )
    starts = [number * (len(tokens) - length) // max(windows - 1, 1) for number in range(windows)]
    return [list(tokens[start : start + length]) for start in starts]
