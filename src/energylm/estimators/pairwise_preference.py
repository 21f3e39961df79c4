"""Which models do raters prefer, and how far do they agree? Majority votes on pairs with binomial tests; more than two
models on one scale; Krippendorff's α; how likely a rater of a known kind passes qualification and attention checks.

    strict      W / n          pairs in which the compared model has more votes than the baseline
    inclusive   (W + T) / n    pairs in which it has at least as many                Deng et al. 2020, table 2: "≤"
    decided     W / (W + L)    of the pairs that are no tie
    p           P(X ≥ k),  X ~ Binomial(n, 1/2)                                      single-sided, scipy's exact test

A pair is one observation, however many raters saw it: their votes on one pair are no independent evidence. Ties come
from votes that were dropped, or from raters who may say that neither is better. Intervals are Wilson's.

    P(i preferred to j) = exp(s_i) / (exp(s_i) + exp(s_j)),    Σ_i s_i = 0          Bradley & Terry 1952

The maximum of the likelihood is found by Newton steps (it is concave); a tie counts as half a win for both. Errors come
from the inverse of the observed information on the space Σ s = 0, so intervals are 95 % Wald intervals. The maximum is
finite if and only if no group of models won, or lost, everything against the rest (Ford 1957): that is checked first.

    α = 1 − D_observed / D_expected        1: perfect agreement, 0: as by chance, below 0: systematic disagreement

Krippendorff's alpha of votes by name is for any number of raters, of whom each saw some of the units. With n_c values c
among the n values of units that have two or more, and o_cc' the ordered pairs of values within units, each weighted by
1 / (m_u − 1):  D_observed = Σ_{c≠c'} o_cc' / n  and  D_expected = Σ_{c≠c'} n_c n_c' / (n (n − 1)). The computation is
that of the package `krippendorff` (extra `energylm[web]`).

    P(pass)  = P(X ≥ m),  X ~ Binomial(n, a)          n items, m right answers needed, a the chance of one
    P(drop)  = 1 − P(X ≥ m'),  X ~ Binomial(c, b)     c checks, m' of them needed, b the chance of one

A coin-tosser has a = b = 1/2 (1/3 where ties may be answered). Whoever always takes one side passes a check in half of
the cases, since sides are drawn; in a qualification whose sides are balanced that rater is right in half of the items.

Use it     `bradley_terry` for three models or more; for two, it is the logit of the decided rate. `pass_probability` to
           choose a qualification long enough, and to judge a panel's exclusions against what was to be expected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energylm.errors import DataError, extra
from energylm.estimators.discrimination import TAIL, Interval
from energylm.records import Record

with extra("web"):
    from scipy.sparse.csgraph import connected_components
    from scipy.stats import binom, binomtest, norm

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


_STEPS, _TOLERANCE = 100, 1e-12

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Strengths:
    """Log-strengths in the order of the models, and the covariance that they have together."""

    strength_M: tuple[float, ...]
    covariance_MM: tuple[tuple[float, ...], ...]

    def interval(self, model: int) -> Interval:
        return self._interval(self.strength_M[model], self.covariance_MM[model][model])

    def difference(self, first: int, second: int) -> Interval:
        """How much stronger the second is."""
        cov = self.covariance_MM
        variance = cov[first][first] + cov[second][second] - 2 * cov[first][second]
        return self._interval(self.strength_M[second] - self.strength_M[first], variance)

    def _interval(self, value: float, variance: float) -> Interval:
        reach = float(norm.isf(TAIL)) * max(variance, 0.0) ** 0.5
        return Interval(value, value - reach, value + reach)


def bradley_terry(wins_MM: ArrayLike) -> Strengths | None:
    """Fit `wins_MM[i][j]`, how often i was preferred to j (a tie is half for either); None if no finite fit exists."""
    wins = np.array(wins_MM, dtype=np.float64)
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1] or len(wins) < 2 or (wins < 0).any() or wins.trace() != 0:
        raise DataError(f"wins must be a square table from 0 with an empty diagonal, came shape {wins.shape}")
    if connected_components(wins > 0, directed=True, connection="strong", return_labels=False) > 1:
        return None
    strength_M = np.zeros(len(wins))
    for _ in range(_STEPS):
        gradient_M, information_MM = _derivatives(strength_M, wins)
        step_M = np.linalg.pinv(information_MM, hermitian=True) @ gradient_M
        step_M *= min(1.0, 2.0 / max(float(np.abs(step_M).max()), 1e-300))  # no overshooting where wins are lopsided
        strength_M = strength_M + step_M
        if np.abs(step_M).max() < _TOLERANCE:
            break
    covariance_MM = np.linalg.pinv(_derivatives(strength_M, wins)[1], hermitian=True)
    return Strengths(tuple(strength_M.tolist()), tuple(tuple(row) for row in covariance_MM.tolist()))


def _derivatives(strength_M: Floats, wins_MM: Floats) -> tuple[Floats, Floats]:
    """Gradient of the log-likelihood, and minus its Hessian."""
    chance_MM = 1 / (1 + np.exp(strength_M[None, :] - strength_M[:, None]))
    games_MM = wins_MM + wins_MM.T
    gradient_M = wins_MM.sum(1) - (games_MM * chance_MM).sum(1)
    weight_MM = games_MM * chance_MM * chance_MM.T
    return gradient_M, np.diag(weight_MM.sum(1)) - weight_MM


def krippendorff_alpha(votes: Mapping[tuple[str, str], str]) -> float | None:
    """α of (rater, unit) → vote. None where it is undefined: no unit with two votes, or one and the same vote only."""
    with extra("web"):
        import krippendorff

    raters, units = (sorted({key[axis] for key in votes}) for axis in (0, 1))
    values = sorted(set(votes.values()))
    if len(values) < 2:
        return None
    table_RU = np.full((len(raters), len(units)), np.nan)
    row, column = ({name: index for index, name in enumerate(names)} for names in (raters, units))
    for (rater, unit), vote in votes.items():
        table_RU[row[rater], column[unit]] = values.index(vote)
    paired_U = (~np.isnan(table_RU)).sum(0) >= 2
    comparable = table_RU[:, paired_U]
    if len(np.unique(comparable[~np.isnan(comparable)])) < 2:
        return None
    return float(krippendorff.alpha(reliability_data=comparable, level_of_measurement="nominal"))


def pass_probability(items: int, needed: int, chance: float) -> float:
    """P(X ≥ needed) for X ~ Binomial(items, chance); nothing asked is passed."""
    return float(binom.sf(needed - 1, items, chance))


def one_side_passes(items: int, needed: int) -> bool:
    """Whether always answering one side passes a qualification in which the right side is balanced."""
    return (items + 1) // 2 >= needed
