"""Which of two models do raters prefer? Majority votes on pairs, binomial tests, Wilson intervals.

    strict      W / n          pairs in which the compared model has more votes than the baseline
    inclusive   (W + T) / n    pairs in which it has at least as many                Deng et al. 2020, table 2: "≤"
    decided     W / (W + L)    of the pairs that are no tie
    p           P(X ≥ k),  X ~ Binomial(n, 1/2)                                      single-sided, scipy's exact test

A pair is one observation, however many raters saw it: their votes on one pair are no independent evidence. Ties come
from votes that were dropped, or from raters who may say that neither is better.

Relations  `bradley_terry` puts more than two models on one scale; `rater_agreement` says how far raters agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scipy.stats import binomtest

from energylm.errors import DataError
from energylm.estimators.discrimination import Interval
from energylm.records import Record

Verdict = Literal["first", "second", "tie"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate(Record):
    """A share of pairs with its 95 % Wilson interval and the p-value of "it is no more than a half"."""

    count: int
    n: int
    interval: Interval
    p_value: float


@dataclass(frozen=True)
class Preference(Record):
    """The compared model (second) against the baseline (first), over pairs with at least one vote."""

    computed = ("n",)

    wins: int
    ties: int
    losses: int
    strict: Rate
    inclusive: Rate
    decided: Rate | None  # None where every pair is a tie

    @property
    def n(self) -> int:
        return self.wins + self.ties + self.losses


def majority(votes: Iterable[Verdict]) -> Verdict:
    """The side with more votes; votes for neither count for neither."""
    given = list(votes)
    if not given:
        raise DataError("a majority needs at least one vote; leave pairs without any out")
    difference = given.count("second") - given.count("first")
    return "second" if difference > 0 else "first" if difference < 0 else "tie"


def preference(verdicts: Iterable[Verdict]) -> Preference | None:
    """All rates from one verdict a pair; None where there is no pair."""
    given = list(verdicts)
    if not given:
        return None
    wins, ties, losses = given.count("second"), given.count("tie"), given.count("first")
    return Preference(
        wins=wins,
        ties=ties,
        losses=losses,
        strict=rate(wins, len(given)),
        inclusive=rate(wins + ties, len(given)),
        decided=rate(wins, wins + losses) if wins + losses else None,
    )


def rate(count: int, n: int) -> Rate:
    """`count` of `n` with interval and p-value."""
    test = binomtest(count, n, 0.5, alternative="greater")
    bounds = binomtest(count, n).proportion_ci(CONFIDENCE, method="wilson")
    return Rate(count, n, Interval(count / n, float(bounds.low), float(bounds.high)), float(test.pvalue))
