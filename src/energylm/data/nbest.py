"""N-best lists of a recogniser or translator, from any of seven formats, with references added.

`espnet`  JSON  `{utterance: {ref, hyp_1: {score, text}, hyp_2: …}}`
`jsonl`   `{"utterance": …, "reference": …, "hypotheses": [{"text": …, "score": …}, …]}` a line. `id` is read for
          `utterance` and `ref` for `reference`; a list without a name is called by its line. The list may be called
          `beams` or `nbest`, and a hypothesis may have the fields of the decoder that it comes from: `words` for its
          text (torchaudio's CTC decoder), `logit_score` (pyctcdecode: without its language model's part), or
          `avg_logprob` and `tokens` (Whisper, which divides by the tokens and the end)
`tsv`     `utterance`, `score`, `text` and maybe `reference`, a hypothesis a line, those of an utterance together. A
          first line with these names says which column is which (others are ignored); the reference of an utterance
          need be written only once
`moses`   `id ||| hypothesis ||| features ||| score` a line, maybe with more fields after. Ids are the numbers of the
          source sentences from 0; references lie in a file of their own, a line a sentence
`nemo`    `hypothesis TAB score` a line, as many for each utterance, without names; the references (a manifest, or a
          line each) tell how many utterances there are
`espnet-folder`  FOLDER/1best_recog/{text,score}, 2best_recog/ …, as ESPnet's recogniser writes them: `utterance text`
          and `utterance score` a line
`kaldi-folder`   FOLDER/text with `utterance-1 words`, `utterance-2 words` … a line, and FOLDER/lm_cost, FOLDER/ac_cost
          with their costs: what `lattice-to-nbest | nbest-to-linear` writes. The score is minus the sum of the costs

The format is told by the file's name, else by its first line; `-` is standard input. Hypotheses keep the recogniser's
order. Nothing that comes twice (an utterance, a key of JSON) is read as if it came once.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from energylm.config.cloze import STDIN, NBestFormat
from energylm.data.text_files import decoded_lines
from energylm.errors import DataError
from energylm.randomness import derive_seed, shuffled

Lines = Sequence[tuple[int, str]]  # (number from 1, text) of each
STDIN_NAME = "standard input"
TSV_COLUMNS = ("utterance", "score", "text", "reference")
TSV_NEEDED = TSV_COLUMNS[:3]
MOSES_SEPARATOR, MOSES_FIELDS = "|||", 4
LIST_KEYS = ("hypotheses", "beams", "nbest")  # of a JSON line: where its hypotheses lie
KALDI_COSTS = ("lm_cost", "ac_cost")
_LAST_NUMBER = re.compile(r"\d+$")
_TENSOR = re.compile(r"^tensor\((.+?)[,)]")  # how torch writes a number that nobody took out of its tensor


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
    context: str = ""  # what the recogniser heard before

    def heard(self, words: int) -> str:
        """The last `words` words of the context."""
        return " ".join(self.context.split()[-words:] if words else ())


def read_lists(
    path: Path | str, *, form: NBestFormat | None = None, references: Path | str | None = None
) -> list[NBest]:
    """All lists of a file. `references` is a text file with a line for each list (for each id of a Moses file)."""
    name, folder = name_of(path), Path(path)
    if str(path) != STDIN and (_recog_folders(folder) or (folder / "text").is_file()):
        form = form or ("espnet-folder" if _recog_folders(folder) else "kaldi-folder")
        lists = _read_folder(folder, form)
    else:
        expected = (
            f"a file of n-best lists ({', '.join(READERS)}), a folder of ESPnet or Kaldi, or - for standard input"
        )
        lines = _lines(path, expected=expected)
        form = form or format_of(lines, name)
        if form == "nemo":
            return _read_nemo(lines, name, references)
        if form not in READERS:
            raise DataError(f"{name} is a file, but the format {form!r} is that of a folder; name another format")
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
    if MOSES_SEPARATOR in first:
        return "moses"
    if "\t" in first:
        return "tsv"
    raise DataError(
        f"{name}: its name and its first line tell no format of n-best lists; name one of {', '.join(READERS)} with "
        "--format (nemo is never guessed)"
    )


def recognisers_best(of_list: NBest) -> int:
    """The index of what the recogniser itself scores highest, the first of equals."""
    return max(range(len(of_list.hypotheses)), key=lambda index: of_list.hypotheses[index].score)


def recording_of(of_list: NBest) -> str:
    """What its name has in common with others of the same recording: all but the last number."""
    return _LAST_NUMBER.sub("", of_list.utterance)


def with_context(lists: Sequence[NBest], words: int) -> list[NBest]:
    """The lists with the last `words` words of what was heard before each: what the file says, else what the recogniser
    thought best in the same recording, in the lists above whose names differ in their last number alone."""
    heard: list[str] = []
    recording, result = None, []
    for of_list in lists:
        recording, before = recording_of(of_list), recording
        heard = heard if recording == before else []
        before_it = of_list.context.split() or heard
        result.append(replace(of_list, context=" ".join(before_it[-words:] if words else ())))
        heard = [*heard[-words:], *of_list.hypotheses[recognisers_best(of_list)].text.split()]
    return result


def sample_lists(lists: Sequence[NBest], count: int | None, *, seed: int) -> list[NBest]:
    """`count` lists chosen at random, in their own order; all of them where there are no more."""
    if count is None or count >= len(lists):
        return list(lists)
    chosen = shuffled(np.arange(count), len(lists), seed=derive_seed(seed, "n-best lists"))
    return [lists[index] for index in sorted(chosen.tolist())]


def hypothesis(text: Any, score: Any, *, location: str) -> Hypothesis:
    """A hypothesis, if it has a text and a finite score; else an error that names its location."""
    if not isinstance(text, str):
        raise DataError(f"{location} has no text (came {text!r:.40}); mend or drop it")
    try:
        value = float(score)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{location} has no score of the recogniser (came {score!r:.40}), so there is nothing to add a language "
            "model to; write the score in, or drop the hypothesis"
        )
    return Hypothesis(text, value)


def nbest(
    utterance: str, reference: Any, hypotheses: Iterable[Hypothesis], *, location: str, context: Any = ""
) -> NBest:
    """A list, if it has a hypothesis, its reference is text or None, and its context text; else an error that names its
    location."""
    if not isinstance(reference, str | None):
        raise DataError(f"{location}: the reference is {reference!r:.40}, expected text")
    if not isinstance(context, str):
        raise DataError(f"{location}: the context is {context!r:.40}, expected the words that were heard before")
    candidates = tuple(hypotheses)
    if not candidates:
        raise DataError(f"{location} has no hypothesis; drop it, or write its hypotheses in")
    return NBest(utterance, reference, candidates, context)


def _read_espnet(lines: Lines, name: str) -> list[NBest]:
    table = _parsed_json("\n".join(line for _, line in lines), location=name)
    if not isinstance(table, dict):
        raise DataError(f"{name} is a JSON {type(table).__name__}, expected {{utterance: {{ref, hyp_1, …}}}}")
    return [_espnet_list(utterance, entry, f"{name}, utterance {utterance!r}") for utterance, entry in table.items()]


def _espnet_list(utterance: str, entry: Any, location: str) -> NBest:
    if not isinstance(entry, dict):
        raise DataError(f"{location} is {entry!r:.40}, expected {{ref, hyp_1: {{score, text}}, …}}")
    by_rank: dict[int, Hypothesis] = {}
    for key, value in entry.items():
        rank = key.removeprefix("hyp_")
        if key != rank:
            if not rank.isdecimal() or not isinstance(value, dict):
                raise DataError(f"{location}: {key!r} is no hypothesis; expected hyp_1: {{score, text}}, hyp_2: …")
            if int(rank) in by_rank:
                raise DataError(f"{location}: {key!r} is hypothesis {int(rank)} a second time; number each by itself")
            by_rank[int(rank)] = hypothesis(value.get("text"), value.get("score"), location=f"{location}, {key}")
    return nbest(utterance, entry.get("ref"), (by_rank[rank] for rank in sorted(by_rank)), location=location)


def _read_jsonl(lines: Lines, name: str) -> list[NBest]:
    lists: list[NBest] = []
    line_of: dict[str, int] = {}
    for number, line in lines:
        if not line.strip():
            continue
        location = f"{name} line {number}"
        record = _parsed_json(line, location=location)
        if not isinstance(record, dict):
            raise DataError(f'{location} is a JSON {type(record).__name__}, expected {{"hypotheses": […]}}')
        entries = next((record[key] for key in LIST_KEYS if key in record), None)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(
                f'{location} has no list "hypotheses" of {{"text": …, "score": …}}; it has: {", ".join(record)}'
            )
        hypotheses = [
            hypothesis(*_decoded(entry), location=f"{location}, hypothesis {rank}")
            for rank, entry in enumerate(entries, start=1)
        ]
        utterance = str(record.get("utterance", record.get("id", number)))
        reference, context = record.get("reference", record.get("ref")), record.get("context", "")
        lists.append(nbest(utterance, reference, hypotheses, location=location, context=context))
        if line_of.setdefault(utterance, number) != number:
            raise DataError(
                f"{location}: utterance {utterance!r} was already there in line {line_of[utterance]}; give each list "
                "its own name, and all hypotheses of an utterance in one line"
            )
    return lists


def _decoded(entry: dict[str, Any]) -> tuple[Any, Any]:
    """Text and score of a hypothesis, under the names that decoders give them."""
    text, words = entry.get("text"), entry.get("words")
    if text is None and isinstance(words, list):
        text = " ".join(map(str, words))
    if "score" not in entry and isinstance(entry.get("tokens"), list) and isinstance(entry.get("avg_logprob"), float):
        return text, entry["avg_logprob"] * (len(entry["tokens"]) + 1)  # Whisper counts the end token, too
    return text, entry.get("score", entry.get("logit_score"))


def _parsed_json(text: str, *, location: str) -> Any:
    """JSON in which no key of an object comes twice: of two entries Python would keep the last, without a word."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise DataError(f"{location}: key {twice!r} comes twice in one object; rename one of them, or drop it")
        return record

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        line = "" if error.lineno == 1 else f"line {error.lineno}, "
        raise DataError(
            f"{location} is not JSON ({error.msg} at {line}column {error.colno}); mend or drop what stands there, or "
            f"name the file's format with --format ({', '.join(READERS)})"
        ) from None


def _read_tsv(lines: Lines, name: str) -> list[NBest]:
    lists = []
    line_of: dict[str, int] = {}
    for utterance, rows in groupby(_tsv_rows(lines, name), key=lambda row: row[1]):
        numbers, _, hypotheses, references = zip(*rows, strict=True)
        if line_of.setdefault(utterance, numbers[0]) != numbers[0]:
            raise DataError(
                f"{name} line {numbers[0]}: utterance {utterance!r} was already there in line {line_of[utterance]}; "
                "sort the file, so that the hypotheses of an utterance stand together"
            )
        location, written = f"{name}, utterance {utterance!r}", {*references} - {None}
        if len(written) > 1:
            raise DataError(f"{location} has {len(written)} different references, expected one")
        lists.append(nbest(utterance, next(iter(written), None), hypotheses, location=location))
    return lists


def _tsv_rows(lines: Lines, name: str) -> Iterator[tuple[int, str, Hypothesis, str | None]]:
    names: Sequence[str] | None = None
    for number, line in lines:
        cells = line.split("\t")
        if number == 1 and set(TSV_NEEDED) <= set(cells):
            names = cells
            continue
        if not line.strip():
            continue
        if names is None:
            names = TSV_COLUMNS[: max(len(cells), len(TSV_NEEDED))]
        if len(cells) != len(names):
            raise DataError(
                f"{name} line {number} has {len(cells)} tab-separated columns, "
                f"expected {len(names)}: {', '.join(names)}"
            )
        row = dict(zip(names, cells, strict=True))
        scored = hypothesis(row["text"], row["score"], location=f"{name} line {number}")
        yield number, row["utterance"], scored, row.get("reference") or None


def _read_moses(lines: Lines, name: str) -> list[NBest]:
    rows: list[tuple[int, Hypothesis]] = []
    for number, line in lines:
        if not line.strip():
            continue
        location, fields = f"{name} line {number}", [field.strip() for field in line.split(MOSES_SEPARATOR)]
        if len(fields) < MOSES_FIELDS or not fields[0].isdecimal():
            raise DataError(f"{location} is not `id ||| hypothesis ||| features ||| score`: {line:.60}")
        if rows and int(fields[0]) < rows[-1][0]:
            raise DataError(f"{location}: id {fields[0]} comes after {rows[-1][0]}; sort the file by id")
        rows.append((int(fields[0]), hypothesis(fields[1], fields[3], location=location)))
    return [
        nbest(str(sentence), None, (scored for _, scored in members), location=f"{name}, id {sentence}")
        for sentence, members in groupby(rows, key=lambda row: row[0])
    ]


READERS: dict[NBestFormat, Callable[[Lines, str], list[NBest]]] = {
    "espnet": _read_espnet,
    "jsonl": _read_jsonl,
    "tsv": _read_tsv,
    "moses": _read_moses,
}
_ENDINGS: dict[str, NBestFormat] = {".json": "espnet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}


def _is_list(line: str) -> bool:
    """Whether a line is the JSON of one n-best list."""
    try:
        return any(key in json.loads(line) for key in LIST_KEYS)
    except json.JSONDecodeError:
        return False


def _read_nemo(lines: Lines, name: str, references: Path | str | None) -> list[NBest]:
    rows = [(number, *line.rpartition("\t")[::2]) for number, line in lines if line.strip()]
    if references is None:
        raise DataError(f"{name} names no utterances; give its manifest, or a line for each, with --references")
    written = [line for _, line in _lines(references, expected="a NeMo manifest, or a file of references")]
    texts = [
        _parsed_json(line, location=f"{references} line {number}").get("text") if line.startswith("{") else line
        for number, line in enumerate(written, start=1)
    ]
    beam, left = divmod(len(rows), max(1, len(texts)))
    if left or not beam:
        raise DataError(
            f"{name} has {len(rows):,} hypotheses for {len(texts):,} references, not as many for each; search with a "
            "fixed beam, or write the lists as JSONL"
        )
    scored = [hypothesis(text, score, location=f"{name} line {number}") for number, text, score in rows]
    return [
        nbest(str(index + 1), text, scored[index * beam : (index + 1) * beam], location=f"{name}, list {index + 1}")
        for index, text in enumerate(texts)
    ]


def _recog_folders(folder: Path) -> dict[int, Path]:
    """ESPnet's folders by rank."""
    ranked = {path.name.removesuffix("best_recog"): path for path in folder.glob("*best_recog")}
    return {int(rank): ranked[rank] for rank in sorted(filter(str.isdecimal, ranked), key=int)}


def _read_folder(folder: Path, form: NBestFormat) -> list[NBest]:
    if form not in FOLDER_READERS:
        raise DataError(f"{folder} is a folder, but the format {form!r} is that of a file; name another format")
    members: dict[str, dict[int, Hypothesis]] = {}
    for utterance, rank, scored in FOLDER_READERS[form](folder):
        members.setdefault(utterance, {})[rank] = scored
    return [
        nbest(utterance, None, (ranked[rank] for rank in sorted(ranked)), location=f"{folder}, utterance {utterance!r}")
        for utterance, ranked in members.items()
    ]


def _espnet_rows(folder: Path) -> Iterator[tuple[str, int, Hypothesis]]:
    for rank, path in _recog_folders(folder).items():
        scores = _keyed(path / "score")
        for utterance, text in _keyed(path / "text").items():
            score = scores.get(utterance, "")
            plain = match[1] if (match := _TENSOR.match(score)) else score
            yield utterance, rank, hypothesis(text, plain, location=f"{path}, utterance {utterance!r}")


def _kaldi_rows(folder: Path) -> Iterator[tuple[str, int, Hypothesis]]:
    costs = [_keyed(folder / name) for name in KALDI_COSTS if (folder / name).is_file()]
    for key, text in _keyed(folder / "text").items():
        utterance, _, rank = key.rpartition("-")
        if not utterance or not rank.isdecimal():
            raise DataError(f"{folder / 'text'}: key {key!r} is no hypothesis; expected utterance-1, utterance-2, …")
        try:
            score = -sum(float(of_file[key]) for of_file in costs) if costs else None
        except (KeyError, ValueError):
            score = None
        yield utterance, int(rank), hypothesis(text, score, location=f"{folder}, hypothesis {key!r}")


FOLDER_READERS: dict[NBestFormat, Callable[[Path], Iterator[tuple[str, int, Hypothesis]]]] = {
    "espnet-folder": _espnet_rows,
    "kaldi-folder": _kaldi_rows,
}


def _keyed(path: Path) -> dict[str, str]:
    """What stands after the first word of each line, by that word."""
    values: dict[str, str] = {}
    for number, line in _lines(path, expected="a folder with it"):
        key, _, value = line.strip().partition(" ")
        if key in values:
            raise DataError(f"{path} line {number}: {key!r} comes twice; drop one of them")
        if key:
            values[key] = value.strip()
    return values


def _lines(path: Path | str, *, expected: str) -> list[tuple[int, str]]:
    file = Path("/dev/stdin" if str(path) == STDIN else path)
    if not file.exists() or file.is_dir():
        raise DataError(f"{name_of(path)} {'is a folder' if file.is_dir() else 'does not exist'}; give {expected}")
    return list(decoded_lines(file))


def _with_references(lists: Sequence[NBest], path: Path | str, *, by_id: bool) -> list[NBest]:
    lines = [line for _, line in _lines(path, expected="a file of references, a line for each list")]
    indices = [int(entry.utterance) for entry in lists] if by_id else list(range(len(lists)))
    if max(indices) >= len(lines) or (not by_id and len(lines) != len(lists)):
        raise DataError(
            f"{path} has {len(lines):,} references but {max(indices) + 1:,} are needed, a line for each list; "
            "give the references of this very set"
        )
    return [replace(entry, reference=lines[index]) for entry, index in zip(lists, indices, strict=True)]
