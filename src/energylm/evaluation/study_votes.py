"""From answers to votes that count: which raters and which answers are dropped, by the rules of the study's design.

1. Whoever fails the qualification is never shown a pair.
2. A rater who passed less than `exclusion.check_mark` of the checks is dropped with all answers.
3. Answers that share a block with a failed check are dropped (Deng et al. 2020, app. A.4).
4. Answers in a block whose check was never answered are dropped or kept, as `exclusion.unchecked` says.

Answers are only read; which were dropped and why is counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from energylm.data.study_items import REAL, Pair, Study
from energylm.data.study_records import Answer
from energylm.estimators.pairwise_preference import Verdict

Drop = Literal["rater failed the checks", "check of the block failed", "check of the block not answered"]
DROPS: tuple[Drop, ...] = ("rater failed the checks", "check of the block failed", "check of the block not answered")


@dataclass(frozen=True)
class Vote:
    rater: str
    pair: Pair
    verdict: Verdict


@dataclass(frozen=True)
class RaterVerdict:
    """What a rater did, and whether any of it counts."""

    rater: str
    qualification_answered: int
    qualification_right: int
    qualified: bool
    checks_answered: int
    checks_right: int
    votes: int
    kept_votes: int
    dropped: bool  # by the second rule

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sifted:
    votes: tuple[Vote, ...]  # that count
    dropped: dict[Drop, int]
    raters: tuple[RaterVerdict, ...]


def sift(study: Study, answers: Iterable[Answer]) -> Sifted:
    """Apply the rules to the answers."""
    by_rater: dict[str, list[Answer]] = {}
    for answer in answers:
        by_rater.setdefault(answer.rater, []).append(answer)
    votes: list[Vote] = []
    dropped: dict[Drop, int] = dict.fromkeys(DROPS, 0)
    raters = []
    for rater, given in by_rater.items():
        failed = _fails_checks(study, given)
        before = len(votes)
        for answer in _of_kind(given, "pair"):
            reason = DROPS[0] if failed else _block_drop(study, answer, given)
            if reason is None:
                votes.append(_vote(study, answer))
            else:
                dropped[reason] += 1
        raters.append(_verdict(study, rater, given, failed, kept=len(votes) - before))
    return Sifted(tuple(votes), dropped, tuple(raters))


def _verdict(study: Study, rater: str, given: Sequence[Answer], failed: bool, *, kept: int) -> RaterVerdict:
    qualification, checks = _of_kind(given, "qualification"), _of_kind(given, "check")
    right = sum(map(_is_right, qualification))
    return RaterVerdict(
        rater=rater,
        qualification_answered=len(qualification),
        qualification_right=right,
        qualified=len(qualification) == len(study.qualification) and right >= study.design.qualification.needed,
        checks_answered=len(checks),
        checks_right=sum(map(_is_right, checks)),
        votes=len(_of_kind(given, "pair")),
        kept_votes=kept,
        dropped=failed,
    )


def _fails_checks(study: Study, given: Sequence[Answer]) -> bool:
    checks = _of_kind(given, "check")
    return sum(map(_is_right, checks)) < study.design.exclusion.needed_checks(len(checks))


def _block_drop(study: Study, answer: Answer, given: Sequence[Answer]) -> Drop | None:
    exclusion = study.design.exclusion
    check = next((one for one in _of_kind(given, "check") if one.block == answer.block), None)
    if check is None:
        return "check of the block not answered" if exclusion.unchecked == "drop" else None
    return "check of the block failed" if exclusion.failed_blocks and not _is_right(check) else None


def _vote(study: Study, answer: Answer) -> Vote:
    pair = study.items[answer.item]
    assert isinstance(pair, Pair)
    verdict: Verdict = "tie"
    if answer.preferred is not None:
        verdict = "second" if answer.preferred == pair.second_model else "first"
    return Vote(answer.rater, pair, verdict)


def _is_right(answer: Answer) -> bool:
    return answer.preferred == REAL


def _of_kind(given: Sequence[Answer], kind: str) -> list[Answer]:
    return [answer for answer in given if answer.kind == kind]
