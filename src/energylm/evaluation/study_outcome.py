"""What a study found: a preference for each comparison, agreement, strengths of all models.

Every pair is decided by the majority of the votes that count (`study_votes`), and is one observation from there on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from energylm.data.study_items import Study
from energylm.data.study_records import Answer
from energylm.estimators.bradley_terry import Strengths, bradley_terry
from energylm.estimators.pairwise_preference import Preference, Verdict, majority, preference
from energylm.estimators.rater_agreement import krippendorff_alpha
from energylm.evaluation.study_votes import Drop, RaterVerdict, Vote, sift


@dataclass(frozen=True)
class ComparisonOutcome:
    first: str  # the baseline
    second: str
    pairs: int  # of the study
    votes: int  # that count
    preference: Preference | None  # over pairs with a vote; None where there is none
    alpha: float | None

    def to_json(self) -> dict[str, Any]:
        found = {} if self.preference is None else self.preference.to_json()
        names = {"first": self.first, "second": self.second, "pairs": self.pairs, "votes": self.votes}
        return names | found | {"alpha": self.alpha}


@dataclass(frozen=True)
class StudyOutcome:
    models: tuple[str, ...]
    comparisons: tuple[ComparisonOutcome, ...]
    strengths: Strengths | None  # of three models or more, where a finite fit exists
    alpha: float | None  # over all comparisons
    judged_pairs: int  # with two votes that count or more, on which alpha stands
    raters: tuple[RaterVerdict, ...]
    dropped: dict[Drop, int]  # votes, by rule
    kept: int
    left_share: float | None  # of all votes for a side: far from a half, raters favour one
    median_seconds: float | None  # of all votes

    @property
    def votes(self) -> int:
        return self.kept + sum(self.dropped.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "models": list(self.models),
            "comparisons": [one.to_json() for one in self.comparisons],
            "strengths": None if self.strengths is None else self._strengths_json(self.strengths),
            "alpha": self.alpha,
            "judged_pairs": self.judged_pairs,
            "raters": [one.to_json() for one in self.raters],
            "votes": {"given": self.votes, "kept": self.kept, "dropped": dict(self.dropped)},
            "left_share": self.left_share,
            "median_seconds": self.median_seconds,
        }

    def _strengths_json(self, strengths: Strengths) -> dict[str, dict[str, float]]:
        return {model: strengths.interval(place).to_json() for place, model in enumerate(self.models)}


def study_outcome(study: Study, answers: Iterable[Answer]) -> StudyOutcome:
    """Everything that the report tells."""
    given = list(answers)
    sifted = sift(study, given)
    by_pair = _by_pair(sifted.votes)
    verdicts = {pair: majority(votes) for pair, votes in by_pair.items()}
    of_pairs = [answer for answer in given if answer.kind == "pair"]
    sides = [answer.choice == "left" for answer in of_pairs if answer.choice != "tie"]
    return StudyOutcome(
        models=study.models,
        comparisons=tuple(_comparison(study, names, sifted.votes, verdicts) for names in study.comparisons),
        strengths=_strengths(study, verdicts) if len(study.models) > 2 else None,
        alpha=_alpha(sifted.votes),
        judged_pairs=sum(len(votes) > 1 for votes in by_pair.values()),
        raters=sifted.raters,
        dropped=sifted.dropped,
        kept=len(sifted.votes),
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


def _strengths(study: Study, verdicts: dict[str, Verdict]) -> Strengths | None:
    """A pair is one game; a tie is half a win for either."""
    place = {model: number for number, model in enumerate(study.models)}
    wins_MM = np.zeros((len(place), len(place)))
    for pair in study.pairs:
        first, second = place[pair.first_model], place[pair.second_model]
        share = {"first": 0.0, "second": 1.0, "tie": 0.5, None: None}[verdicts.get(pair.id)]
        if share is not None:
            wins_MM[second, first] += share
            wins_MM[first, second] += 1 - share
    return bradley_terry(wins_MM)


def _by_pair(votes: Sequence[Vote]) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for vote in votes:
        found.setdefault(vote.pair.id, []).append(vote.verdict)
    return found


def _alpha(votes: Sequence[Vote]) -> float | None:
    return krippendorff_alpha({(vote.rater, vote.pair.id): vote.verdict for vote in votes})
