"""Labelled sentences as published: the tasks of GLUE, and BLiMP's minimal pairs.

    FOLDER, or FOLDER/CoLA …      train.tsv, dev.tsv (MNLI: dev_matched.tsv) as GLUE packs them, or .jsonl
                                  cola_in_domain_train.tsv, sst2_train.tsv, mrpc_train.txt, rte1_dev.xml … as published

Evaluation examples are GLUE's dev sets; of CoLA these are the authors' in-domain and out-of-domain dev sets together.
Where only the authors' files are there, MRPC is judged on their test set (GLUE's dev set is a part of their training
set) and RTE on the test set of its third edition, trained on all other sets of editions 1 to 3. Classes may be written
as numbers or names. MNLI's rows without an agreed label ("-") are left out and counted.

A file is a TSV whose first line names its columns, or JSON Lines with fields, under any of several names (`COLUMNS`);
CoLA, SST-2 and STS-B as published name none (`HEADLESS`); RTE is XML, `<pair entailment="YES|NO">` (first edition:
`value="TRUE|FALSE"`) with `<t>` text and `<h>` hypothesis. Rows of a TSV that do not have the first line's number of
cells are left out and counted, as GLUE's own files hold a few; where they are many, the file is not what it claims.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from energylm.config.cloze import REGRESSION, TASKS, TaskName
from energylm.data.examples import Example
from energylm.data.text_files import decoded_lines, json_records, text_field, tsv_records
from energylm.errors import DataError
from energylm.progress import say

NO_LABEL = "-"
MOST_BROKEN = 0.01  # of the rows of a TSV


@dataclass(frozen=True)
class Columns:
    """Names that a column may have, in the order of preference; `second` is empty for tasks of one sentence."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...]

    @property
    def all(self) -> list[tuple[str, ...]]:
        return [names for names in (self.first, self.second, self.label) if names]


_PAIR = ("sentence1", "premise", "text1"), ("sentence2", "hypothesis", "text2")
_LABEL = ("label", "gold_label")
COLUMNS: dict[TaskName, Columns] = {
    "cola": Columns(("sentence", "text"), (), _LABEL),
    "sst2": Columns(("sentence", "text"), (), _LABEL),
    "mrpc": Columns(("#1 String", *_PAIR[0]), ("#2 String", *_PAIR[1]), ("Quality", *_LABEL)),
    "sts": Columns(*_PAIR, ("score", "label")),
    "qqp": Columns(("question1", *_PAIR[0]), ("question2", *_PAIR[1]), ("is_duplicate", *_LABEL)),
    "mnli": Columns(*_PAIR, ("gold_label", "label")),
    "qnli": Columns(("question",), ("sentence",), _LABEL),
    "rte": Columns(*_PAIR, _LABEL),
}
HEADLESS: dict[TaskName, tuple[str, ...]] = {  # the columns of published files whose first line is an example
    "cola": ("source", "label", "mark", "sentence"),
    "sst2": ("sentence", "label"),
    "sts": ("genre", "file", "year", "number", "score", "sentence1", "sentence2"),
}
OPEN_ENDED: tuple[TaskName, ...] = ("sts",)  # may have more columns, where the sentences come from
FOLDERS = {
    **{"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "sts": "STS-B"},
    **{"qqp": "QQP", "mnli": "MNLI", "qnli": "QNLI", "rte": "RTE"},
}


@dataclass(frozen=True)
class Layout:
    """Files that make up the two parts of a task, as somebody packs them."""

    train: tuple[str, ...]
    evaluation: tuple[str, ...]


_COLA = ("in_domain_dev.tsv", "out_of_domain_dev.tsv")
_RTE = tuple(f"rte{edition}_{part}.xml" for edition in (1, 2, 3) for part in ("dev", "test"))
LAYOUTS: dict[TaskName, tuple[Layout, ...]] = {
    "cola": (
        Layout(("cola_in_domain_train.tsv",), tuple(f"cola_{name}" for name in _COLA)),
        Layout(("in_domain_train.tsv",), _COLA),
    ),
    "sst2": (Layout(("sst2_train.tsv",), ("sst2_dev.tsv",)),),
    "mrpc": (
        Layout(("mrpc_train.txt",), ("mrpc_test.txt",)),
        Layout(("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",)),
    ),
    "sts": (Layout(("sts-train.csv",), ("sts-dev.csv",)),),
    "qqp": (),
    "mnli": (
        Layout(("train.tsv",), ("dev_matched.tsv",)),
        Layout(("multinli_1.0_train.jsonl",), ("multinli_1.0_dev_matched.jsonl",)),
    ),
    "qnli": (),
    "rte": (Layout(_RTE[:-1], _RTE[-1:]),),
}
COMMON = (
    Layout(("train.tsv",), ("dev.tsv",)),
    *(Layout(("train.jsonl",), (name,)) for name in ("dev.jsonl", "val.jsonl", "validation.jsonl")),
)


def task_files(task: TaskName, folder: str | Path) -> tuple[list[Path], list[Path]]:
    """The files of the training and of the evaluation examples, by the first layout that is there whole."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the one that holds the files of {task}")
    # train.tsv in the folder itself cannot be meant where the folder holds those of several tasks
    several = (folder / FOLDERS[task]).is_dir()
    for parent in (folder, folder / FOLDERS[task], folder / task):
        for layout in LAYOUTS[task] if parent == folder and several else (*LAYOUTS[task], *COMMON):
            if all((parent / name).is_file() for name in (*layout.train, *layout.evaluation)):
                return [parent / name for name in layout.train], [parent / name for name in layout.evaluation]
    names = "; ".join(
        f"{', '.join(layout.train)} and {', '.join(layout.evaluation)}" for layout in (*LAYOUTS[task], *COMMON[:2])
    )
    raise DataError(f"{folder} holds no files of {task}; looked there and in {FOLDERS[task]} for {names}")


def read_examples(task: TaskName, files: Sequence[str | Path]) -> list[Example]:
    """Every example of the files, whatever their format."""
    examples = [example for path in files for example in _of_file(task, Path(path))]
    if not examples:
        raise DataError(f"{', '.join(map(str, files))} holds no example of {task}")
    return examples


def _of_file(task: TaskName, path: Path) -> Iterator[Example]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file of {task}")
    if path.suffix == ".xml":
        if task != "rte":
            raise DataError(f"{path} is no file of {task}; give a TSV that names its columns, or JSON Lines")
        yield from _rte(path)
        return
    unlabelled = 0
    for number, first, second, label in _rows(_records(task, path), COLUMNS[task], path):
        if label == NO_LABEL:
            unlabelled += 1
        else:
            yield Example(first, second, _label(task, label, path, number))
    if unlabelled:
        say(f"{path}: {unlabelled:,} examples without an agreed label left out")


Row = tuple[int, str, str | None, str]  # line, first text, second text or None, label as it is written


def _records(task: TaskName, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line and cells by column; the first line names the columns where it names the label or a text."""
    if path.suffix == ".jsonl":
        return json_records(path)
    _, first_line = next(decoded_lines(path), (0, ""))
    names = {name for names in COLUMNS[task].all for name in names}
    if task in HEADLESS and names.isdisjoint(first_line.split("\t")):
        return _headless(path, HEADLESS[task], open_ended=task in OPEN_ENDED)
    return tsv_records(path, most_broken=MOST_BROKEN)


def _headless(path: Path, names: Sequence[str], *, open_ended: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Tab-separated rows. Quotes are text: these files do not escape."""
    for number, line in decoded_lines(path):
        row = line.split("\t")
        if len(row) < len(names) or (len(row) > len(names) and not open_ended):
            expected = f"at least {len(names)}" if open_ended else len(names)
            raise DataError(f"{path} line {number} has {len(row)} tab-separated columns, expected {expected}")
        yield number, dict(zip(names, row, strict=False))


def _rows(records: Iterator[tuple[int, Mapping[str, Any]]], columns: Columns, path: Path) -> Iterator[Row]:
    names: list[str] = []
    for number, record in records:
        names = names or [_present(names_of, record, path) for names_of in columns.all]
        cells = [_cell(record, name, path, number) for name in names]
        yield number, cells[0], cells[1] if columns.second else None, cells[-1]


def _present(wanted: Sequence[str], record: Mapping[str, Any], path: Path) -> str:
    for name in wanted:
        if name in record:
            return name
    raise DataError(f"{path} has no column {' or '.join(wanted)}; it has: {', '.join(record)}")


def _cell(record: Mapping[str, Any], name: str, path: Path, number: int) -> str:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{path} line {number}: column {name} is {value!r:.40}, expected text or a number")
    return str(value)


def _label(task: TaskName, written: str, path: Path, number: int) -> float:
    about = TASKS[task]
    if about.kind == REGRESSION:
        try:
            score = float(written)
        except ValueError:
            score = float("nan")
        if not 0 <= score <= about.highest:
            raise DataError(f"{path} line {number}: score {written!r} is no number from 0 to {about.highest:g}")
        return score
    for index, name in enumerate(about.labels):
        if written in (name, str(index)):
            return float(index)
    names = ", ".join(f"{index} or {name}" for index, name in enumerate(about.labels))
    raise DataError(f"{path} line {number}: unknown label {written!r}; {task} has {names}")


def _rte(path: Path) -> Iterator[Example]:
    """Class 0 is entailment, as GLUE orders them."""
    labels = {"YES": 0.0, "TRUE": 0.0, "NO": 1.0, "FALSE": 1.0}
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f"{path} is not XML ({error}); expected <entailment-corpus> with <pair> elements") from None
    for pair in root.iter("pair"):
        judged = pair.get("entailment", pair.get("value"))
        text, hypothesis = pair.findtext("t"), pair.findtext("h")
        if judged not in labels or text is None or hypothesis is None:
            raise DataError(
                f"{path}, pair {pair.get('id')}: expected <t>, <h> and entailment=YES or NO, came {judged!r}"
            )
        yield Example(text.strip(), hypothesis.strip(), labels[judged])


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """Two sentences that differ in one thing, one of them grammatical (BLiMP, Warstadt et al. 2020)."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_blimp(path: Path | str) -> Iterator[MinimalPair]:
    for number, record in json_records(Path(path)):
        location = f"{path} line {number}"
        yield MinimalPair(
            good=text_field(record, "sentence_good", location=location),
            bad=text_field(record, "sentence_bad", location=location),
            paradigm=str(record.get("UID", Path(path).stem)),
            phenomenon=str(record.get("linguistics_term", "")),
        )
