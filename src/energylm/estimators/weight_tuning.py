"""The best hypothesis of each list under f + Σ_s λ_s·score_s, and the λ that make the best choices on dev lists.

    chosen(λ) = argmax_h  (f_h + Σ_s λ_s·score_sh) / length_h            Clark et al. 2020, §3.2 (length_h = 1)

`tune_weights`    λ is tried on a grid (all combinations for several scorers) and the one with the best metric over all
                  lists kept; among equals the smallest. The paper's way.
`search_weights`  any number of scorers, any sign, no grid: one λ after the other by an exact line search, until a round
                  over all of them gains nothing (Och 2003). Along one λ the total of each hypothesis is a line, the
                  choice of a list the upper envelope of its lines, so the metric is piecewise constant: all its values
                  come from sorting where envelopes bend. The middle of the best piece is taken.
`smooth_weights`  any number and sign as well: the λ with the least expected cost Σ_lists Σ_h P(h) c_h of choosing by
                  P(h) ∝ exp(total) (Smith & Eisner 2006), by its gradient. What one list decides by a hair moves it
                  little, so several λ generalise better to other lists; its own metric on these lists is not the best.

Equal hypotheses are left in the recogniser's order. Every hypothesis comes with its statistics, so that a λ costs one
argmax and one sum. A scorer with λ = 0 is not asked: 0·(−inf) counts as 0.

Relations  `additive_metrics` gives statistics and metric; `search.minimum_risk` chooses by expected errors instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from energylm.errors import ConfigError, DataError, extra
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, text_costs

Integers = NDArray[np.int64]
MOST_COMBINATIONS = 100_000
FEWEST_LISTS = 2
FIRST_WEIGHTS = (0.0, 0.25)  # of all scorers: where searches start
MOST_ROUNDS = 20
BEYOND = 1.0  # how far past the outermost bend of an envelope a λ is taken


@dataclass(frozen=True)
class ListScores:
    """U lists of at most H hypotheses: the recogniser's scores f, the scorers' (S, U, H), lengths. What is not there
    has f = −inf and so is never chosen; nor is an empty hypothesis, whose score would be 0 and beat every text."""

    base_UH: Floats
    scores_SUH: Floats
    length_UH: Floats

    def rows(self, lists: Integers) -> "ListScores":
        """Some of the lists."""
        return ListScores(self.base_UH[lists], self.scores_SUH[:, lists], self.length_UH[lists])

    def totals(self, weights_S: Sequence[float]) -> Floats:
        """(U, H): f + Σ_s λ_s·score_s, by length; −inf for what is not there and for sums that have no value (NaN)."""
        weights = np.asarray(weights_S, float)
        used = weights != 0
        weighted_UH = np.zeros(self.base_UH.shape)
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, and NaN is nobody's best
            for weight, scores_UH in zip(weights[used], self.scores_SUH[used], strict=True):
                weighted_UH += weight * scores_UH
            total_UH = (self.base_UH + weighted_UH) / self.length_UH
        return np.asarray(np.where(np.isnan(total_UH) | np.isneginf(self.base_UH), -np.inf, total_UH))

    def choose(self, weights_S: Sequence[float]) -> tuple[Integers, NDArray[np.bool_]]:
        """The chosen hypothesis of each list, and whether another had the very same total."""
        total_UH = self.totals(weights_S)
        chosen_U = self._ranked(total_UH).argmax(1)  # the first of equals
        best_U = np.take_along_axis(total_UH, chosen_U[:, None], axis=1)
        return chosen_U, ((total_UH == best_U) & np.isfinite(best_U)).sum(1) > 1

    def order(self, weights_S: Sequence[float]) -> Integers:
        """(U, H) hypotheses of each list from the best to the worst, what is not there last; the first as `choose`."""
        return np.asarray((-self._ranked(self.totals(weights_S))).argsort(1, kind="stable"))

    def _ranked(self, total_UH: Floats) -> Floats:
        """Totals to compare: a hypothesis whose total is −inf still goes before what is not there."""
        impossible_UH = np.isneginf(total_UH) & ~np.isneginf(self.base_UH)
        return np.where(impossible_UH, np.finfo(float).min, total_UH)


@dataclass(frozen=True)
class Tuning:
    """All λ that were tried, with the metric that each gave."""

    weights: tuple[float, ...]
    value: float
    tried: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    lists: int

    @property
    def on_the_edge(self) -> bool:
        """Whether a chosen λ is the highest that was tried, so that a higher one might be better still."""
        highest = [max(column) for column in zip(*self.tried, strict=True)]
        return any(weight == top for weight, top in zip(self.weights, highest, strict=True))


def tune_weights(
    scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric, *, grid: Sequence[float]
) -> Tuning:
    """The best λ of `grid` for one scorer, of all combinations of `grid` and 0 for several."""
    scorers, lists, _ = scores.scores_SUH.shape
    _check_count(lists)
    values = grid if scorers == 1 else tuple(dict.fromkeys((0.0, *grid)))
    if len(values) ** scorers > MOST_COMBINATIONS:
        raise ConfigError(
            f"{len(values)} values of λ for each of {scorers} scorers make {len(values) ** scorers:,} combinations, "
            f"more than {MOST_COMBINATIONS:,}; take a coarser grid or fewer scorers"
        )
    tried = [weights for weights in product(values, repeat=scorers) if scorers == 1 or any(weights)]
    totals = [statistics_UHM[np.arange(lists), scores.choose(weights)[0]].sum(0) for weights in tried]
    metrics = metric.value(np.stack(totals))
    sign = 1 if metric.lower_is_better else -1
    best = min(range(len(tried)), key=lambda index: (sign * metrics[index], sum(tried[index])))
    return Tuning(tried[best], float(metrics[best]), tuple(tried), tuple(metrics.tolist()), lists)


def search_weights(scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric) -> Tuning:
    """The best λ, one after the other; `tried` are those that a search passed through."""
    scorers, lists, _ = scores.scores_SUH.shape
    _check_count(lists)
    sign = 1 if metric.lower_is_better else -1
    tried: list[tuple[float, ...]] = []
    values: list[float] = []
    for first in FIRST_WEIGHTS:
        weights = np.full(scorers, first)
        before = np.inf
        for _ in range(MOST_ROUNDS):
            for scorer in range(scorers):
                weights[scorer] = _best_on_line(scores, statistics_UHM, metric, weights, scorer)
            chosen_U = scores.choose(weights.tolist())[0]
            value = float(metric.value(statistics_UHM[np.arange(lists), chosen_U].sum(0)[None])[0])
            tried.append(tuple(weights.tolist()))
            values.append(value)
            if sign * value >= before:
                break
            before = sign * value
    best = min(range(len(tried)), key=lambda index: (sign * values[index], sum(map(abs, tried[index]))))
    return Tuning(tried[best], values[best], tuple(tried), tuple(values), lists)


def smooth_weights(scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric) -> Tuning:
    """The λ with the least expected cost: errors, or what a hypothesis lacks of the best BLEU or chrF."""
    with extra("rerank"):
        from scipy.optimize import minimize

    scorers, lists, _ = scores.scores_SUH.shape
    _check_count(lists)
    exists_UH = np.isfinite(scores.base_UH) & np.isfinite(scores.scores_SUH).all(0)
    base_UH = np.where(exists_UH, scores.base_UH / scores.length_UH, -np.inf)
    scores_SUH = np.where(exists_UH, scores.scores_SUH / scores.length_UH, 0.0)
    cost_UH = np.where(exists_UH, text_costs(statistics_UHM, metric), 0.0)
    some_U = exists_UH.any(1)  # lists with something to choose from

    def expected(weights_S: Floats) -> tuple[float, Floats]:
        total_UH = (base_UH + np.tensordot(weights_S, scores_SUH, 1))[some_U]
        posterior_UH = np.exp(total_UH - total_UH.max(1, keepdims=True))
        posterior_UH /= posterior_UH.sum(1, keepdims=True)
        expected_U = (posterior_UH * cost_UH[some_U]).sum(1)
        pull_UH = posterior_UH * (cost_UH[some_U] - expected_U[:, None])
        return float(expected_U.sum()), np.tensordot(scores_SUH[:, some_U], pull_UH, 2)

    ends = [minimize(expected, np.full(scorers, first), jac=True, method="L-BFGS-B") for first in FIRST_WEIGHTS]
    tried = [tuple(end.x.tolist()) for end in ends]
    totals = [statistics_UHM[np.arange(lists), scores.choose(weights)[0]].sum(0) for weights in tried]
    values = metric.value(np.stack(totals)).tolist()
    best = min(range(len(ends)), key=lambda index: ends[index].fun)
    return Tuning(tried[best], values[best], tuple(tried), tuple(values), lists)


def _best_on_line(
    scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric, weights_S: Floats, scorer: int
) -> float:
    """The λ of one scorer that gives the best metric while all others stay; the present one where none is better."""
    at_U, bend_E, list_E, from_E, to_E = line_choices(scores, weights_S, scorer)
    rows_U = np.arange(len(at_U))
    first_M = statistics_UHM[rows_U, at_U].sum(0)
    if not len(bend_E):
        return float(weights_S[scorer])
    order_E = bend_E.argsort(kind="stable")
    changes_EM = (statistics_UHM[list_E, to_E] - statistics_UHM[list_E, from_E])[order_E]
    totals_PM = first_M + np.concatenate([np.zeros((1, len(first_M))), changes_EM.cumsum(0)])
    bends_E = bend_E[order_E]
    ends_P = np.concatenate([[bends_E[0] - 2 * BEYOND], bends_E, [bends_E[-1] + 2 * BEYOND]])
    widths_P = np.diff(ends_P)
    values_P = (1 if metric.lower_is_better else -1) * metric.value(totals_PM)
    values_P = np.where(widths_P > 0, values_P, np.inf)  # several envelopes bend here at once
    present = int(np.searchsorted(bends_E, weights_S[scorer], side="right"))
    best = values_P.min()
    if values_P[present] <= best:
        return float(weights_S[scorer])
    pieces = np.flatnonzero(values_P == best)
    widest = pieces[widths_P[pieces].argmax()]
    return float((ends_P[widest] + ends_P[widest + 1]) / 2)


def line_choices(
    scores: ListScores, weights_S: Floats, scorer: int
) -> tuple[Integers, Floats, Integers, Integers, Integers]:
    """What lists choose as the λ of one scorer goes from −∞ to ∞: their first choices (U,), and every change as where
    (E,), in which list (E,), from which hypothesis (E,), to which (E,)."""
    others_S = np.array(weights_S, float)
    others_S[scorer] = 0.0
    offset_UH, slope_UH = scores.totals(others_S.tolist()), scores.scores_SUH[scorer] / scores.length_UH
    exists_UH = np.isfinite(offset_UH) & np.isfinite(slope_UH)
    slope_UH, offset_UH = np.where(exists_UH, slope_UH, np.inf), np.where(exists_UH, offset_UH, -np.inf)
    rows_U = np.arange(len(slope_UH))
    lowest_UH = slope_UH == slope_UH.min(1, keepdims=True)
    at_U = np.where(lowest_UH, offset_UH, -np.inf).argmax(1)
    first_U = at_U.copy()
    parts: list[tuple[Floats, Integers, Integers, Integers]] = []
    for _ in range(slope_UH.shape[1] - 1):
        rise_UH = slope_UH - slope_UH[rows_U, at_U][:, None]
        steeper_UH = exists_UH & (rise_UH > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            bend_UH = np.where(steeper_UH, (offset_UH[rows_U, at_U][:, None] - offset_UH) / rise_UH, np.inf)
        next_U = bend_UH.min(1)
        # of several that cross at once the steepest is above the others from there on
        to_U = np.where(bend_UH == next_U[:, None], rise_UH, -np.inf).argmax(1)
        moves = np.flatnonzero(np.isfinite(next_U))
        if not len(moves):
            break
        parts.append((next_U[moves], moves, at_U[moves].copy(), to_U[moves]))
        at_U[moves] = to_U[moves]
    none = (np.zeros(0), *(np.zeros(0, np.int64) for _ in range(3)))
    bends, lists, starts, ends = (np.concatenate(column) for column in zip(none, *parts, strict=True))
    return first_U, bends, lists, starts, ends


def _check_count(lists: int) -> None:
    if lists < FEWEST_LISTS:
        raise DataError(
            f"λ cannot be tuned on {lists} list{'' if lists == 1 else 's'}: any λ that happens to suit it would win; "
            "give a dev set of some hundred lists, or a fixed λ"
        )
