"""GLUE tasks from published files: those of the tasks' own authors, or those of the GLUE benchmark, by their names.

    FOLDER, or FOLDER/CoLA …      train.tsv, dev.tsv (MNLI: dev_matched.tsv) as GLUE packs them, or .jsonl
                                  cola_in_domain_train.tsv, sst2_train.tsv, mrpc_train.txt, rte1_dev.xml … as published

Evaluation examples are GLUE's dev sets; of CoLA these are the authors' in-domain and out-of-domain dev sets together.
Where only the authors' files are there, MRPC is judged on their test set (GLUE's dev set is a part of their training
set) and RTE on the test set of its third edition, trained on all other sets of editions 1 to 3. Classes may be written
as numbers or names. MNLI's rows without an agreed label ("-") are left out and counted.

Relations  `formats.glue` and `formats.labelled_table` read single files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from energylm.config.cloze import REGRESSION, TASKS, TaskName
from energylm.data.examples import Example
from energylm.data.formats.glue import LabelledPair, LabelledSentence, read_cola, read_mrpc, read_rte, read_sst2
from energylm.data.formats.labelled_table import Columns, has_named_columns, labelled_rows
from energylm.data.text_files import decoded_lines
from energylm.errors import DataError
from energylm.progress import say

NO_LABEL = "-"
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
    for place in (folder, folder / FOLDERS[task], folder / task):
        for layout in (*LAYOUTS[task], *COMMON) if place != folder or _is_own(task, folder) else LAYOUTS[task]:
            if all((place / name).is_file() for name in (*layout.train, *layout.evaluation)):
                return [place / name for name in layout.train], [place / name for name in layout.evaluation]
    known = "; ".join(
        f"{', '.join(layout.train)} and {', '.join(layout.evaluation)}" for layout in (*LAYOUTS[task], *COMMON[:2])
    )
    raise DataError(f"{folder} holds no files of {task}; looked there and in {FOLDERS[task]} for {known}")


def _is_own(task: TaskName, folder: Path) -> bool:
    """Whether train.tsv in the folder itself can be meant: not where the folder holds those of several tasks."""
    return not (folder / FOLDERS[task]).is_dir()


def read_examples(task: TaskName, files: Sequence[str | Path]) -> list[Example]:
    """Every example of the files, whatever their format."""
    found = [example for path in files for example in _of_file(task, Path(path))]
    if not found:
        raise DataError(f"{', '.join(map(str, files))} holds no example of {task}")
    return found


def _of_file(task: TaskName, path: Path) -> Iterator[Example]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file of {task}")
    if path.suffix == ".xml" or (task in _PUBLISHED and not has_named_columns(path, COLUMNS[task])):
        if task not in _PUBLISHED or (path.suffix == ".xml") != (task == "rte"):
            raise DataError(f"{path} is no file of {task}; give a TSV that names its columns, or JSON Lines")
        yield from _PUBLISHED[task](path)
        return
    unlabelled = 0
    for number, first, second, written in labelled_rows(path, COLUMNS[task]):
        if written == NO_LABEL:
            unlabelled += 1
        else:
            yield Example(first, second, _label(task, written, path, number))
    if unlabelled:
        say(f"{path}: {unlabelled:,} examples without an agreed label left out")


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
    known = {name: place for place, name in enumerate(about.labels)}
    known |= {str(place): place for place in range(len(about.labels))}
    if written not in known:
        names = ", ".join(f"{place} or {name}" for place, name in enumerate(about.labels))
        raise DataError(f"{path} line {number}: unknown label {written!r}; {task} has {names}")
    return float(known[written])


def _sentences(read: Callable[[Path], Iterator[LabelledSentence]]) -> Callable[[Path], Iterator[Example]]:
    return lambda path: (Example(one.text, None, float(one.label)) for one in read(path))


def _pairs(
    read: Callable[[Path], Iterator[LabelledPair]], *, flip: bool = False
) -> Callable[[Path], Iterator[Example]]:
    """`flip` where the published 1 is our first class."""
    return lambda path: (Example(one.first, one.second, float(one.label != flip)) for one in read(path))


def _published_sts(path: Path) -> Iterator[Example]:
    """STS benchmark: genre, file, year, number, score, two sentences, and sometimes their sources."""
    for number, line in decoded_lines(path):
        cells = line.split("\t")
        if len(cells) < 7:
            raise DataError(f"{path} line {number} has {len(cells)} tab-separated columns, expected at least 7")
        yield Example(cells[5], cells[6], _label("sts", cells[4], path, number))


_PUBLISHED: Mapping[TaskName, Callable[[Path], Iterator[Example]]] = {
    "cola": _sentences(read_cola),
    "sst2": _sentences(read_sst2),
    "mrpc": _pairs(read_mrpc),
    "sts": _published_sts,
    "rte": _pairs(read_rte, flip=True),
}
