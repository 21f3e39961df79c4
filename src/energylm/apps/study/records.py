"""What a study's store hands out and takes in: plain records, free of any database.

`Item` is all that a rater's page may know; `StudyAnswer` is what is exported and reported.
"""

from dataclasses import dataclass
from typing import Literal

from energylm.apps.study.design import Kind
from energylm.records import Record

RaterChoice = Literal["left", "right", "tie"]
CHOICES: tuple[RaterChoice, ...] = ("left", "right", "tie")
Stage = Literal["qualification", "study", "failed", "finished"]


@dataclass(frozen=True)
class Rater:
    id: int
    label: str


@dataclass(frozen=True)
class Item:
    """One comparison as a rater sees it: nothing here tells who wrote what, or whether the answer is known."""

    id: str
    stage: Literal["qualification", "study"]
    prefix: str
    left: str
    right: str
    ties: bool  # whether "tie" may be answered
    number: int  # of this rater's comparisons in the stage, from 1
    total: int | None  # comparisons of the stage; None where it depends on what others answer


@dataclass(frozen=True)
class Outcome:
    """What became of an answer. `stored` and `repeated` (the same answer came again) are both safe on the disk."""

    status: Literal["stored", "repeated", "refused", "handed over"]
    message: str

    @property
    def kept(self) -> bool:
        return self.status in ("stored", "repeated")


@dataclass(frozen=True)
class StudyAnswer(Record):
    """One stored answer with order and side."""

    computed = ("preferred",)

    rater: str
    item: str
    kind: Kind
    position: int  # of all that this rater was handed, from 0
    block: int | None  # of comparisons that share a check; None in the qualification
    left: str  # who wrote it: a model's name, "real" or "shuffled"
    right: str
    choice: RaterChoice
    seconds: float
    opened_at: float  # Unix time
    answered_at: float

    @property
    def preferred(self) -> str | None:
        """Who wrote the text that was preferred; None for a tie."""
        return {"left": self.left, "right": self.right, "tie": None}[self.choice]


@dataclass(frozen=True)
class Standing:
    """Where a rater stands. `stage` is finished when no pair can ever come to this rater again."""

    rater: Rater
    stage: Stage
    qualification_answered: int
    qualification_right: int
    checks_answered: int
    checks_right: int
    pairs_answered: int
    last_seen: float | None  # Unix time of the last item handed out or answer stored


@dataclass(frozen=True)
class StudyProgress:
    pairs: int
    pairs_complete: int  # with all their votes
    votes: int
    votes_wanted: int
    open: int  # pairs in somebody's hands
    raters: tuple[Standing, ...]
