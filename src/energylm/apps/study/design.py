"""A study's design, and its folder: what raters are shown and who wrote it; written once, checked whenever it is read.

`study.json`           design, models, comparisons, origin, counts, SHA-256 of the files and of all of this (`digest`)
`pairs.jsonl`          two models' completions of one prefix, in the order in which they are handed out
`qualification.jsonl`  real text against a sample, answered before the study
`checks.jsonl`         the same kind of thing, hidden among the pairs
`study.sqlite`         raters and answers (`store`), made when the study is served

An item's identifier is a hash with a secret salt, so that it tells a rater neither whether the item is a check nor who
wrote what. The design's defaults are those of Deng et al. 2020, appendix A.4: 333 pairs, three raters each,
qualification on real text against samples with a pass mark of 2/3, one attention check in every four comparisons.
"""

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from energylm.config.base import Config
from energylm.errors import DataError
from energylm.files import atomic_folder, read_json, sha256_of_file, sha256_of_json, write_json, write_text
from energylm.verbs.verb import Positional

STUDY_FILE, DATABASE_FILE = "study.json", "study.sqlite"
PAIRS_FILE, QUALIFICATION_FILE, CHECKS_FILE = "pairs.jsonl", "qualification.jsonl", "checks.jsonl"
FORMAT, VERSION = "energylm study", 1
REAL = "real"  # the name of real text among models

RESERVED = (REAL, "shuffled")  # what known answers are made of; no model may be called so
_ROUNDING = 1e-9  # 2/3 of 24 is 16, not the next integer above 16.000000000000001

Kind = Literal["qualification", "check", "pair"]
StudyFolder = Annotated[str, Positional("FOLDER"), Field(description="A study's folder (`energylm study new`).")]


class Qualification(Config):
    """Real text against samples, answered before the study; whoever misses the pass mark is let go."""

    items: int = Field(24, ge=0, description="Length; a coin-tosser passes 24 items at 2/3 in 7.6 % of cases. 0: none.")
    pass_mark: float = Field(2 / 3, gt=0.5, le=1, description="Share of right answers that is needed.")

    @property
    def needed(self) -> int:
        """Right answers needed."""
        return needed_answers(self.items, self.pass_mark)


class Checks(Config):
    """Comparisons with a known answer among the others, which they resemble."""

    every: int = Field(4, ge=2, description="One comparison of this many is a check, at a random place among them.")
    wrong: Literal["sample", "shuffled"] = Field(
        "sample",
        description="What stands against real text: sample: a model's completion (the paper); shuffled: the real text "
        "with its words in random order, which nobody who reads prefers.",
    )
    items: int | None = Field(None, ge=1, description="Different checks; none = enough for one rater who does it all.")


class Exclusion(Config):
    """Which answers the report drops; what was stored stays as it is."""

    check_mark: float = Field(
        2 / 3, ge=0, le=1, description="A rater who passed a smaller share of the checks is dropped; 0 drops nobody."
    )
    failed_blocks: bool = Field(
        True, description="Drop the answers that share a block of comparisons with a failed check (the paper's rule)."
    )
    unchecked: Literal["drop", "keep"] = Field(
        "drop", description="What becomes of answers in a block whose check was never answered (a rater who left)."
    )

    def needed_checks(self, checks: int) -> int:
        """Checks that a rater must have passed of those answered."""
        return needed_answers(checks, self.check_mark)


class StudyDesign(Config):
    """What serving and reporting a study rest on; kept in the study's folder."""

    title: str = Field("Which continuation is better?", description="Heading of the raters' page.")
    question: str = Field(
        "Both texts begin with the same words. Which of the two goes on more sensibly? Texts may stop in mid-sentence.",
        description="What raters are asked, on every page.",
    )
    ties: bool = Field(False, description="Whether raters may answer that neither is better.")
    raters_per_pair: int = Field(3, ge=1, description="Votes on each pair, all from different raters.")
    max_pairs_per_rater: int | None = Field(None, ge=1, description="Pairs that one rater may answer; none = all.")
    qualification: Qualification = Field(Qualification(), description="Before the study.")
    checks: Checks = Field(Checks(), description="During the study.")
    exclusion: Exclusion = Field(Exclusion(), description="After the study.")
    abandon_after_seconds: float = Field(
        1800, gt=0, description="A pair that was opened and not answered for so long may go to another rater."
    )
    seed: int = Field(0, ge=0, description="Of order, sides, places of checks, and what models draw.")

    def checks_needed(self, pairs: int) -> int:
        """Different checks for a rater who answers as many pairs as one may: a check for each begun block."""
        most = min(pairs, self.max_pairs_per_rater or pairs)
        return math.ceil(most / (self.checks.every - 1))


def needed_answers(items: int, mark: float) -> int:
    """The smallest count of `items` that reaches the share `mark`."""
    return math.ceil(items * mark - _ROUNDING)


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
        items: list[Pair | Known] = [*self.pairs, *self.qualification, *self.checks]
        return {item.id: item for item in items}

    @property
    def votes_wanted(self) -> int:
        return len(self.pairs) * self.design.raters_per_pair


def comparison_name(first: str, second: str) -> str:
    """What results call a comparison."""
    return f"{first}_{second}"


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
    names = [comparison_name(*compared) for compared in comparisons]
    if len(set(names)) < len(names):
        raise DataError(f"two comparisons would both be called {max(names, key=names.count)!r}; rename a model")
    contents: dict[str, Sequence[Pair] | Sequence[Known]] = {
        PAIRS_FILE: pairs,
        QUALIFICATION_FILE: qualification,
        CHECKS_FILE: checks,
    }
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
