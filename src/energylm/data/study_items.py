"""A study's folder: what raters are shown, who wrote it, and the design; written once, checked whenever it is read.

`study.json`           design, models, comparisons, origin, counts, SHA-256 of the files and of all of this (`digest`)
`pairs.jsonl`          two models' completions of one prefix, in the order in which they are handed out
`qualification.jsonl`  real text against a sample, answered before the study
`checks.jsonl`         the same kind of thing, hidden among the pairs
`study.sqlite`         raters and answers (`study_store`), made when the study is served

An item's identifier is a hash with a secret salt, so that it tells a rater neither whether the item is a check nor who
wrote what.
"""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from energylm.config.study import StudyDesign
from energylm.errors import DataError
from energylm.files import atomic_folder, read_json, sha256_of_file, sha256_of_json, write_json, write_text

STUDY_FILE, DATABASE_FILE = "study.json", "study.sqlite"
PAIRS_FILE, QUALIFICATION_FILE, CHECKS_FILE = "pairs.jsonl", "qualification.jsonl", "checks.jsonl"
FORMAT, VERSION = "energylm study", 1
REAL = "real"  # the name of real text among models

Kind = Literal["qualification", "check", "pair"]


@dataclass(frozen=True)
class Pair:
    """Two models' completions of a prefix; which stands left is decided for each rater."""

    id: str
    prefix: str
    first: str
    second: str
    first_model: str  # the baseline
    second_model: str


@dataclass(frozen=True)
class Known:
    """A comparison whose answer is known: `real` is right."""

    id: str
    prefix: str
    real: str
    wrong: str
    wrong_source: str  # a model's name, or "shuffled"


@dataclass(frozen=True)
class Study:
    folder: Path
    design: StudyDesign
    models: tuple[str, ...]
    comparisons: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]
    qualification: tuple[Known, ...]
    checks: tuple[Known, ...]
    origin: dict[str, Any]
    digest: str

    @cached_property
    def items(self) -> dict[str, Pair | Known]:
        return {item.id: item for item in (*self.pairs, *self.qualification, *self.checks)}

    @property
    def votes_wanted(self) -> int:
        return len(self.pairs) * self.design.raters_per_pair


def item_id(salt: str, kind: Kind, number: int) -> str:
    """16 hexadecimal digits; who does not know the salt learns neither the kind nor the number from them."""
    return hashlib.sha256(f"energylm study item {salt} {kind} {number}".encode()).hexdigest()[:16]


def write_study(
    folder: Path | str,
    *,
    design: StudyDesign,
    models: Sequence[str],
    comparisons: Sequence[tuple[str, str]],
    pairs: Sequence[Pair],
    qualification: Sequence[Known],
    checks: Sequence[Known],
    origin: dict[str, Any],
) -> Study:
    """Make the folder, whole or not at all; one that is there is left alone, since raters may have answered it."""
    folder = Path(folder)
    refuse_existing(folder)
    contents = {PAIRS_FILE: pairs, QUALIFICATION_FILE: qualification, CHECKS_FILE: checks}
    with atomic_folder(folder) as temporary:
        for name, items in contents.items():
            write_text(temporary / name, "".join(_line(item) for item in items))
        facts: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "design": design.model_dump(mode="json"),
            "models": list(models),
            "comparisons": [list(names) for names in comparisons],
            "origin": origin,
            "counts": {Path(name).stem: len(items) for name, items in contents.items()},
            "files": {name: sha256_of_file(temporary / name) for name in contents},
        }
        write_json(temporary / STUDY_FILE, facts | {"digest": sha256_of_json(facts)})
    return read_study(folder)


def refuse_existing(folder: Path) -> None:
    """A folder that holds anything is left alone."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not empty; a study is never written over, choose another --output")


def read_study(folder: Path | str) -> Study:
    """Read and check a study's folder; anything damaged, changed or of another make is one line that names it."""
    folder = Path(folder)
    if not (folder / STUDY_FILE).is_file():
        making = f"energylm study new --output {shlex.quote(str(folder))}"
        raise DataError(f"{folder} holds no {STUDY_FILE}; make a study with `{making}`")
    facts = read_json(folder / STUDY_FILE)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise DataError(f"{folder / STUDY_FILE} is no study of version {VERSION}; make it again with this energylm")
    if facts.pop("digest", None) != sha256_of_json(facts):
        raise DataError(f"{folder / STUDY_FILE} was changed after it was made; restore it, or make a new study")
    for name, digest in facts["files"].items():
        if not (folder / name).is_file() or sha256_of_file(folder / name) != digest:
            raise DataError(f"{folder / name} is missing or was changed after the study was made; restore it")
    return Study(
        folder=folder,
        design=StudyDesign.checked(facts["design"], origin=str(folder / STUDY_FILE)),
        models=tuple(facts["models"]),
        comparisons=tuple((first, second) for first, second in facts["comparisons"]),
        pairs=_read(folder / PAIRS_FILE, Pair),
        qualification=_read(folder / QUALIFICATION_FILE, Known),
        checks=_read(folder / CHECKS_FILE, Known),
        origin=facts["origin"],
        digest=sha256_of_json(facts),
    )


ItemType = TypeVar("ItemType", Pair, Known)


def _read(path: Path, kind: type[ItemType]) -> tuple[ItemType, ...]:
    return tuple(kind(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line)


def _line(item: Pair | Known) -> str:
    return json.dumps(asdict(item), ensure_ascii=False) + "\n"
