"""What a rater is handed next, and where a rater stands: pure functions of the study and of what came before.

    qualification   every item, in an order of the rater's own; real text stands left in half of them
    study           blocks of `checks.every` comparisons: pairs in the study's order, and a check at a random place

A block that is begun ends with its check even if pairs run out. Orders, sides and places are functions of (seed, rater,
item), so a study can be replayed. `Item` is all that a rater's page may know; `StudyAnswer` is what is exported and
reported.

Relations  `store` remembers turns and knows which pair is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from energylm.apps.study.design import REAL, Kind, Known, Pair, Study
from energylm.randomness import derive_seed, shuffled
from energylm.records import Record

RaterChoice = Literal["left", "right", "tie"]
CHOICES: tuple[RaterChoice, ...] = ("left", "right", "tie")
Stage = Literal["qualification", "study", "failed", "finished"]
AnswerStatus = Literal["stored", "repeated", "refused", "handed over"]  # repeated: the same answer came again


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


@dataclass(frozen=True)
class Turn:
    """An item in a rater's hands, now or before."""

    item: str
    kind: Kind
    position: int
    block: int | None
    swapped: bool
    choice: RaterChoice | None = None  # None: not answered
    released: bool = False  # handed over to another rater
    seen_at: float = 0.0  # when it was handed out or answered last
    assignment: int = 0  # its row in the store

    @property
    def is_open(self) -> bool:
        return self.choice is None and not self.released


def next_turn(study: Study, rater: int, turns: Sequence[Turn], *, free_pair: Pair | None) -> Turn | None:
    """The turn of a rater who has none open; `free_pair` is the pair that may be handed out. None: nothing to do."""
    design, size = study.design, len(study.qualification)
    qualified = _of_kind(turns, "qualification")
    if len(qualified) < size:
        item = study.qualification[_order(len(qualified), size, design.seed, "qualification", rater)]
        rank = _order(len(qualified), size, design.seed, "sides of the qualification", rater)
        return Turn(item.id, "qualification", len(turns), None, rank % 2 == 1)
    if _has_failed(study, turns):
        return None
    block, number = divmod(len(turns) - size, design.checks.every)
    in_block = [turn.kind for turn in turns if turn.block == block]
    is_begun = "pair" in in_block
    check = None if "check" in in_block else _fresh_check(study, rater, turns)
    if "check" not in in_block and check is None:
        return None  # no pair is shown that no check could vouch for
    check_is_due = number == derive_seed(design.seed, "place of the check", rater, block) % design.checks.every
    if check is not None and ((check_is_due and free_pair) or (is_begun and not free_pair)):
        return Turn(check.id, "check", len(turns), block, _side(study, rater, check.id))
    if free_pair is None:
        return None
    return Turn(free_pair.id, "pair", len(turns), block, _side(study, rater, free_pair.id))


def _fresh_check(study: Study, rater: int, turns: Sequence[Turn]) -> Known | None:
    """A check that this rater has not seen, in an order of the rater's own; None when all were seen."""
    used = len(_of_kind(turns, "check"))
    if used >= len(study.checks):
        return None
    return study.checks[_order(used, len(study.checks), study.design.seed, "checks", rater)]


def may_have_more_pairs(study: Study, turns: Sequence[Turn]) -> bool:
    """Past the qualification, and below the limit of pairs for one rater; what was handed over does not count."""
    most = study.design.max_pairs_per_rater
    if len(turns) < len(study.qualification):
        return False
    return most is None or sum(not turn.released for turn in _of_kind(turns, "pair")) < most


def _has_failed(study: Study, turns: Sequence[Turn]) -> bool:
    """Whether the qualification was answered to its end, with too few right."""
    answered = _of_kind(turns, "qualification", answered=True)
    right = sum(_is_right(study, turn) for turn in answered)
    return len(answered) == len(study.qualification) and right < study.design.qualification.needed


def _is_right(study: Study, turn: Turn) -> bool:
    left, right = writers(study, turn)
    return {"left": left, "right": right}.get(turn.choice or "") == REAL


def writers(study: Study, turn: Turn) -> tuple[str, str]:
    """Who wrote what stood left and right."""
    item = study.items[turn.item]
    both = (REAL, item.wrong_source) if isinstance(item, Known) else (item.first_model, item.second_model)
    return (both[1], both[0]) if turn.swapped else both


def shown(study: Study, turn: Turn) -> Item:
    """The turn as its rater may see it."""
    item = study.items[turn.item]
    left, right = (item.real, item.wrong) if isinstance(item, Known) else (item.first, item.second)
    if turn.swapped:
        left, right = right, left
    qualifies, size = turn.kind == "qualification", len(study.qualification)
    stage: Literal["qualification", "study"] = "qualification" if qualifies else "study"
    number, total = (turn.position + 1, size) if qualifies else (turn.position - size + 1, None)
    return Item(item.id, stage, item.prefix, left, right, ties_allowed(study, turn.kind), number, total)


def ties_allowed(study: Study, kind: Kind) -> bool:
    """Never in the qualification: its odds are those of a choice between two."""
    return study.design.ties and kind != "qualification"


def standing(study: Study, rater: Rater, turns: Sequence[Turn], *, complete: set[str]) -> Standing:
    """Where a rater stands; `complete` are the pairs that have all their votes."""
    qualification = _of_kind(turns, "qualification", answered=True)
    checks = _of_kind(turns, "check", answered=True)
    return Standing(
        rater=rater,
        stage=_stage(study, rater.id, turns, complete),
        qualification_answered=len(qualification),
        qualification_right=sum(_is_right(study, turn) for turn in qualification),
        checks_answered=len(checks),
        checks_right=sum(_is_right(study, turn) for turn in checks),
        pairs_answered=len(_of_kind(turns, "pair", answered=True)),
        last_seen=max((turn.seen_at for turn in turns), default=None),
    )


def _of_kind(turns: Sequence[Turn], kind: Kind, *, answered: bool = False) -> list[Turn]:
    return [turn for turn in turns if turn.kind == kind and (turn.choice is not None or not answered)]


def _stage(study: Study, rater: int, turns: Sequence[Turn], complete: set[str]) -> Stage:
    if len(_of_kind(turns, "qualification", answered=True)) < len(study.qualification):
        return "qualification"
    if _has_failed(study, turns):
        return "failed"
    if any(turn.is_open for turn in turns):
        return "study"
    seen = {turn.item for turn in turns}
    left = next((pair for pair in study.pairs if pair.id not in seen and pair.id not in complete), None)
    pair = left if may_have_more_pairs(study, turns) else None
    return "finished" if next_turn(study, rater, turns, free_pair=pair) is None else "study"


def _side(study: Study, rater: int, item: str) -> bool:
    return derive_seed(study.design.seed, "side", rater, item) % 2 == 1


def _order(index: int, size: int, seed: int, *names: str | int) -> int:
    """What stands at `index` of the seeded order that `names` call."""
    return _whole_order(size, derive_seed(seed, *names))[index]


@lru_cache(maxsize=1024)
def _whole_order(size: int, seed: int) -> tuple[int, ...]:
    return tuple(shuffled(np.arange(size), size, seed=seed).tolist())
