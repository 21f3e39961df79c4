"""Labelled texts for detectors: which text is a person's, which a machine's, from files of several kinds.

    .jsonl, .ndjson    an object a line, its field `text`: one kind of writer a file (GPT-2 output data, Ghostbuster)
    .json              {original: […], sampled: […]}: both kinds of writer (Fast-DetectGPT)
    .txt, .text, .md   the file is a text, or each of its lines (format `lines`)
    a folder           all such files in it, in the order of their names

Empty texts and duplicates are left out, and so are texts that stand in both classes, and files of a folder that cannot
be read (one that is named itself must be readable); all are counted and said. A text of more than a million characters
is no text, and so is one of control characters. Texts that begin alike (an original and
the sample that continues its beginning, one article cut at two places) fall into the same part of every split, so that
none is trained on and tested on.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from energylm.config.texts import DetectionSources, TextFormat
from energylm.data.document import Split, split_of
from energylm.data.text_files import decoded_blocks, decoded_lines, json_records, text_field
from energylm.errors import DataError
from energylm.progress import say

Label = Literal["human", "machine"]
HUMAN: Label = "human"
MACHINE: Label = "machine"
GROUP_WORDS = 12  # samples of the usual data sets repeat about 20 words of their original
MOST_CONTRADICTIONS = 0.1  # of the smaller class: beyond, the labels of the files are mixed up
MOST_CHARACTERS = 1_000_000  # of a text: a long novel; beyond, a file of many texts was taken for one
MOST_CONTROLS = 0.05  # of its characters; a text may hold a few by mistake
FOLDER, FILE = "folder", "file"
_CONTROLS = str.maketrans("", "", "".join(map(chr, (*range(9), 11, *range(14, 32), 127))))

_ENDINGS: dict[str, TextFormat] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_PAIRS = ".json"


@dataclass(frozen=True, slots=True)
class LabelledText:
    text: str
    label: Label
    source: str  # the file as the user named it, without its folder
    name: str  # the file and the line in it
    subgroup: str = ""  # what the user groups texts by; empty: by nothing

    @property
    def group(self) -> str:
        """What texts that belong together share: their first words."""
        return " ".join(self.text.lower().split()[:GROUP_WORDS])


@dataclass(frozen=True)
class DetectionData:
    """Texts of both classes (or of one: `require_both` refuses that), and what was left out on the way."""

    texts: tuple[LabelledText, ...]
    left_out: dict[str, int] = field(default_factory=dict)  # why -> how many

    def of(self, label: Label) -> list[LabelledText]:
        return [text for text in self.texts if text.label == label]

    @property
    def human(self) -> list[LabelledText]:
        return self.of(HUMAN)

    @property
    def machine(self) -> list[LabelledText]:
        return self.of(MACHINE)

    def describe(self) -> str:
        counts = f"{len(self.human):,} human and {len(self.machine):,} machine texts"
        reasons = [f"{count:,} {why}" for why, count in self.left_out.items() if count]
        return counts + (f"; left out: {', '.join(reasons)}" if reasons else "")

    def require_both(self, purpose: str) -> None:
        """Refuse one class only: nothing can be told apart then."""
        for label, texts, option in ((HUMAN, self.human, "--human"), (MACHINE, self.machine, "--machine")):
            if not texts:
                raise DataError(
                    f"one class only: {purpose} needs human and machine texts, but there is no {label} text; "
                    f"add {option} PATH (a file {{original, sampled}} counts as both with --pairs)"
                )

    def split(self, *, valid_fraction: float, test_fraction: float, purpose: int) -> dict[Split, "DetectionData"]:
        """Three parts by a hash of the texts' beginnings; `purpose` names a hash of its own."""
        parts: dict[Split, list[LabelledText]] = {"train": [], "valid": [], "test": []}
        for text in self.texts:
            split = split_of(text.group, valid_fraction=valid_fraction, test_fraction=test_fraction, seed=purpose)
            parts[split].append(text)
        return {name: DetectionData(tuple(part)) for name, part in parts.items()}


def read_detection(sources: DetectionSources) -> DetectionData:
    """All texts that `sources` names. A named file that cannot be read is an error that names file and place; one
    inside a folder is left out and counted."""
    if sources.is_empty:
        raise DataError("no texts were named; give --human PATH and --machine PATH, or --pairs PATH for a file of both")
    unreadable: dict[str, str] = {}
    texts = [
        text
        for label, paths in ((HUMAN, sources.human), (MACHINE, sources.machine))
        for path in (*paths, *sources.pairs)
        for text in _path(
            Path(path).expanduser(), label, sources, unreadable, both=path in sources.pairs, what=f"{label} texts"
        )
    ]
    _say_unreadable(unreadable)
    data = _cleaned(texts)
    left_out = data.left_out | ({"files that cannot be read": len(unreadable)} if unreadable else {})
    if sources.part != "all":
        data = data.split(valid_fraction=0.0, test_fraction=sources.test_fraction, purpose=0)[sources.part]
    return DetectionData(tuple(_limited(data.texts, sources.limit)), left_out)


@dataclass(frozen=True)
class UnlabelledTexts:
    texts: list[tuple[str, str]]  # (name, text)
    unreadable: dict[str, str]  # file of a folder -> why it is left out


def read_unlabelled(
    sources: Sequence[Path | str], *, form: TextFormat = "auto", field: str = "text", what: str = "unlabelled texts"
) -> UnlabelledTexts:
    """Texts whose writer is unknown, from the same kinds of files; of pairs, first all originals. `what`
    they are is for the message if there are none."""
    wanted, unreadable = DetectionSources(format=form, field=field), dict[str, str]()
    texts = []
    for source in sources:
        path = Path(source).expanduser()
        is_pairs = path.suffix.lower() == _PAIRS
        for label in (HUMAN, MACHINE) if is_pairs else (HUMAN,):
            half = f" {'original' if label == HUMAN else 'sampled'}" if is_pairs else ""
            labelled = _path(path, label, wanted, unreadable, both=is_pairs, what=what)
            texts += [(f"{text.name}{half}", text.text) for text in labelled]
    _say_unreadable(unreadable)
    return UnlabelledTexts(texts, unreadable)


def _say_unreadable(unreadable: dict[str, str]) -> None:
    if unreadable:
        say(
            f"{len(unreadable):,} file{'s' * (len(unreadable) > 1)} of the folders cannot be read and "
            f"{'are' if len(unreadable) > 1 else 'is'} left out; the first: {next(iter(unreadable.values()))}"
        )


def _path(
    path: Path, label: Label, sources: DetectionSources, unreadable: dict[str, str], *, both: bool, what: str
) -> Iterator[LabelledText]:
    """The texts of a file or folder; files of a folder that cannot be read are entered into `unreadable`."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _form(file, sources) is not None]
        if not files:
            endings = ", ".join((*_ENDINGS, _PAIRS))
            raise DataError(f"folder {path} holds no file ending in {endings}; rename the files, or name one")
        for file in files:
            try:
                texts = list(_file(file, file.relative_to(path.parent).as_posix(), label, sources, both=both))
            except (DataError, OSError) as error:
                unreadable[str(file)] = str(error)
            else:
                yield from texts
        if all(str(file) in unreadable for file in files):
            raise DataError(f"no file of folder {path} can be read; the first: {unreadable[str(files[0])]}")
    elif not path.exists():
        raise DataError(f"{path} does not exist; give a file or a folder of {what}")
    else:
        yield from _file(path, path.name, label, sources, both=both)


def _form(path: Path, sources: DetectionSources) -> str | None:
    suffix = path.suffix.lower()
    if suffix == _PAIRS:
        return _PAIRS
    form = _ENDINGS.get(suffix)
    return sources.format if sources.format != "auto" and form is not None else form


def _file(path: Path, source: str, label: Label, sources: DetectionSources, *, both: bool) -> Iterator[LabelledText]:
    form = _form(path, sources) or (sources.format if sources.format != "auto" else None)
    if both and form != _PAIRS:
        raise DataError(
            f"{path} is no file of pairs (.json with original and sampled); give it as --human or --machine"
        )
    for number, text, group in _texts(path, form, label, sources):
        name = f"{source}:{number}" if number else source
        if len(text) > MOST_CHARACTERS:
            raise DataError(
                f"{name} has {len(text):,} characters, more than the {MOST_CHARACTERS:,} that one text may have; split "
                "it, or read its lines as texts with --format lines"
            )
        if len(text) - len(text.translate(_CONTROLS)) > MOST_CONTROLS * len(text):
            raise DataError(
                f"{name} is no text: more than {MOST_CONTROLS:.0%} of it are control characters; leave it out"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            broken = ord(error.object[error.start])
            raise DataError(f"{name}: U+{broken:04X} is half a character, not text; mend its escapes") from None
        yield LabelledText(text, label, source, name, group)


def _texts(path: Path, form: str | None, label: Label, sources: DetectionSources) -> Iterator[tuple[int, str, str]]:
    """(number in the file, text, subgroup); number 0 is the whole file."""
    group = {None: "", FOLDER: path.resolve().parent.name, FILE: path.stem}.get(sources.group)
    if group is None and form != "jsonl":
        raise DataError(
            f"{path} has no fields to group by {sources.group!r}; give JSON lines, or group by folder or file"
        )
    match form:
        case ".json":
            originals, samples = read_detection_pairs(path)
            chosen = originals if label == HUMAN else samples
            yield from ((number, text, group or "") for number, text in enumerate(chosen, start=1))
        case "jsonl":
            for number, (line, record) in enumerate(json_records(path), start=1):
                location = f"{path} line {line}"
                text = text_field(record, sources.field, location=location)
                yield number, text, _group_field(record, sources.group, location) if group is None else group
        case "lines":
            yield from ((number, text, group or "") for number, text in decoded_lines(path))
        case "text":
            yield 0, "".join(decoded_blocks(path)), group or ""
        case _:
            raise DataError(
                f"{path}: its ending does not say what it is; rename it (.txt, .jsonl, .json), or say --format"
            )


def _group_field(record: dict[str, Any], name: str | None, location: str) -> str:
    """A group may be a number, too, and null is a group of its own."""
    if name not in record:
        raise DataError(f"{location} has no field {name!r} to group by; it has: {', '.join(record)}")
    return str(record[name])


def read_detection_pairs(path: Path | str) -> tuple[list[str], list[str]]:
    """Human originals, and what a machine wrote from the beginning of each, of a JSON file of both."""
    try:
        table = json.loads("".join(decoded_blocks(Path(path))))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}); a JSON object a line belongs into a .jsonl file"
        ) from None
    columns = []
    for name in ("original", "sampled"):
        column = table.get(name) if isinstance(table, dict) else None
        if not isinstance(column, list) or not all(isinstance(text, str) for text in column):
            raise DataError(f"{path} has no list of texts {name!r}; expected {{original: […], sampled: […]}}")
        columns.append(column)
    originals, samples = columns
    if len(originals) != len(samples):
        raise DataError(f"{path} has {len(originals)} originals but {len(samples)} samples; expected one for each")
    return originals, samples


def _limited(texts: Sequence[LabelledText], most: int | None) -> Sequence[LabelledText]:
    """At most so many texts of each file and class."""
    if most is None:
        return texts
    of_files: dict[tuple[str, str], list[LabelledText]] = {}
    for text in texts:
        of_files.setdefault((text.label, text.source), []).append(text)
    return [text for of_file in of_files.values() for text in spread(of_file, most)]


def spread(texts: list[LabelledText], most: int | None) -> list[LabelledText]:
    """At most so many of the texts, evenly spread over them."""
    if most is None or len(texts) <= most:
        return texts
    return [texts[index] for index in np.linspace(0, len(texts) - 1, most).round().astype(int)]


def _cleaned(texts: Sequence[LabelledText]) -> DetectionData:
    """Without empty texts, second copies and texts of both classes."""
    labels: dict[str, set[Label]] = {}
    for text in texts:
        labels.setdefault(normalised(text.text), set()).add(text.label)
    contradictions = {content for content, seen in labels.items() if content and len(seen) > 1}
    smaller = min(sum(label in seen for seen in labels.values()) for label in (HUMAN, MACHINE))
    if len(contradictions) > max(1, MOST_CONTRADICTIONS * smaller):
        first = next(text for text in texts if normalised(text.text) in contradictions)
        raise DataError(
            f"{len(contradictions):,} texts are labelled human and machine at once, the first is {first.name}; "
            "the same file was given for both: check --human and --machine"
        )
    distinct, left_out = dict[str, LabelledText](), Counter[str]()
    for text in texts:
        content = normalised(text.text)
        if not content:
            left_out["empty"] += 1
        elif content in contradictions:
            left_out["labelled human and machine"] += 1
        elif distinct.setdefault(content, text) is not text:
            left_out["duplicates"] += 1
    return DetectionData(tuple(distinct.values()), dict(left_out))


def normalised(text: str) -> str:
    """Letters without their case, blanks as one space: what makes two texts the same."""
    return " ".join(text.lower().split())
