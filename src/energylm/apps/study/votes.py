"""From answers to votes that count: which raters and which answers are dropped, by the rules of the study's design.

1. Whoever fails the qualification is never shown a pair.
2. A rater who passed less than `exclusion.check_mark` of the checks is dropped with all answers.
3. Answers that share a block with a failed check are dropped (Deng et al. 2020, app. A.4).
4. Answers in a block whose check was never answered are dropped or kept, as `exclusion.unchecked` says.

Answers are only read; which were dropped and why is counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from energylm.apps.study.design import REAL, Pair, Study, comparison_name
from energylm.apps.study.turns import StudyAnswer
from energylm.estimators.discrimination import Interval
from energylm.estimators.pairwise_preference import (
    Preference,
    Verdict,
    bradley_terry,
    krippendorff_alpha,
    majority,
    preference,
)
from energylm.records import Record

Drop = Literal["rater failed the checks", "check of the block failed", "check of the block not answered"]
DROPS: tuple[Drop, ...] = ("rater failed the checks", "check of the block failed", "check of the block not answered")


@dataclass(frozen=True)
class Vote:
    rater: str
    pair: Pair
    verdict: Verdict


@dataclass(frozen=True)
class RaterVerdict(Record):
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


@dataclass(frozen=True)
class Sifted:
    votes: tuple[Vote, ...]  # that count
    dropped: dict[Drop, int]
    raters: tuple[RaterVerdict, ...]


def sift(study: Study, answers: Iterable[StudyAnswer]) -> Sifted:
    """Apply the rules to the answers."""
    by_rater: dict[str, list[StudyAnswer]] = {}
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


def _verdict(study: Study, rater: str, given: Sequence[StudyAnswer], failed: bool, *, kept: int) -> RaterVerdict:
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


def _fails_checks(study: Study, given: Sequence[StudyAnswer]) -> bool:
    checks = _of_kind(given, "check")
    return sum(map(_is_right, checks)) < study.design.exclusion.needed_checks(len(checks))


def _block_drop(study: Study, answer: StudyAnswer, given: Sequence[StudyAnswer]) -> Drop | None:
    exclusion = study.design.exclusion
    check = next((other for other in _of_kind(given, "check") if other.block == answer.block), None)
    if check is None:
        return "check of the block not answered" if exclusion.unchecked == "drop" else None
    return "check of the block failed" if exclusion.failed_blocks and not _is_right(check) else None


def _vote(study: Study, answer: StudyAnswer) -> Vote:
    pair = study.items[answer.item]
    assert isinstance(pair, Pair)
    verdict: Verdict = "tie"
    if answer.preferred is not None:
        verdict = "second" if answer.preferred == pair.second_model else "first"
    return Vote(answer.rater, pair, verdict)


def _is_right(answer: StudyAnswer) -> bool:
    return answer.preferred == REAL


def _of_kind(given: Sequence[StudyAnswer], kind: str) -> list[StudyAnswer]:
    return [answer for answer in given if answer.kind == kind]


@dataclass(frozen=True)
class ComparisonOutcome(Record):
    first: str  # the baseline
    second: str
    pairs: int  # of the study
    votes: int  # that count
    preference: Preference | None  # over pairs with a vote; None where there is none
    alpha: float | None


@dataclass(frozen=True)
class VoteCounts(Record):
    computed = ("given",)

    wanted: int
    kept: int
    dropped: dict[Drop, int]  # by rule

    @property
    def given(self) -> int:
        return self.kept + sum(self.dropped.values())


@dataclass(frozen=True)
class StudyOutcome(Record):
    """What a study found: a preference for each comparison, agreement, strengths of all models.

    Every pair is decided by the majority of the votes that count, and is one observation from there on."""

    models: tuple[str, ...]
    comparisons: dict[str, ComparisonOutcome]  # by the two names, "base_joint"
    strengths: dict[str, Interval] | None  # of three models or more, where a finite fit exists
    alpha: float | None  # over all comparisons
    judged_pairs: int  # with two votes that count or more, on which alpha stands
    raters: tuple[RaterVerdict, ...]
    raters_per_pair: int  # wanted
    votes: VoteCounts
    left_share: float | None  # of all votes for a side: far from a half, raters favour one
    median_seconds: float | None  # of all votes


def study_outcome(study: Study, answers: Iterable[StudyAnswer]) -> StudyOutcome:
    """Everything that the report tells."""
    given = list(answers)
    sifted = sift(study, given)
    by_pair = _by_pair(sifted.votes)
    verdicts = {pair: majority(votes) for pair, votes in by_pair.items()}
    of_pairs = [answer for answer in given if answer.kind == "pair"]
    sides = [answer.choice == "left" for answer in of_pairs if answer.choice != "tie"]
    return StudyOutcome(
        models=study.models,
        comparisons={
            comparison_name(*names): _comparison(study, names, sifted.votes, verdicts) for names in study.comparisons
        },
        strengths=_strengths(study, verdicts) if len(study.models) > 2 else None,
        alpha=_alpha(sifted.votes),
        judged_pairs=sum(len(votes) > 1 for votes in by_pair.values()),
        raters=sifted.raters,
        raters_per_pair=study.design.raters_per_pair,
        votes=VoteCounts(study.votes_wanted, len(sifted.votes), sifted.dropped),
        left_share=sum(sides) / len(sides) if sides else None,
        median_seconds=median(answer.seconds for answer in of_pairs) if of_pairs else None,
    )


def _comparison(
    study: Study, names: tuple[str, str], votes: Sequence[Vote], verdicts: dict[str, Verdict]
) -> ComparisonOutcome:
    pairs = [pair for pair in study.pairs if (pair.first_model, pair.second_model) == names]
    mine = [vote for vote in votes if (vote.pair.first_model, vote.pair.second_model) == names]
    return ComparisonOutcome(
        first=names[0],
        second=names[1],
        pairs=len(pairs),
        votes=len(mine),
        preference=preference(verdicts[pair.id] for pair in pairs if pair.id in verdicts),
        alpha=_alpha(mine),
    )


def _strengths(study: Study, verdicts: dict[str, Verdict]) -> dict[str, Interval] | None:
    """A pair is one game; a tie is half a win for either."""
    row = {model: number for number, model in enumerate(study.models)}
    wins_MM = np.zeros((len(row), len(row)))
    for pair in study.pairs:
        first, second = row[pair.first_model], row[pair.second_model]
        share = {"first": 0.0, "second": 1.0, "tie": 0.5, None: None}[verdicts.get(pair.id)]
        if share is not None:
            wins_MM[second, first] += share
            wins_MM[first, second] += 1 - share
    fitted = bradley_terry(wins_MM)
    return None if fitted is None else {model: fitted.interval(number) for model, number in row.items()}


def _by_pair(votes: Sequence[Vote]) -> dict[str, list[Verdict]]:
    verdicts: dict[str, list[Verdict]] = {}
    for vote in votes:
        verdicts.setdefault(vote.pair.id, []).append(vote.verdict)
    return verdicts


def _alpha(votes: Sequence[Vote]) -> float | None:
    return krippendorff_alpha({(vote.rater, vote.pair.id): vote.verdict for vote in votes})
