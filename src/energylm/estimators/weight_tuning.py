"""The best hypothesis of each list under f + Σ_s λ_s·score_s, and the λ that make the best choices on dev lists.

    chosen(λ) = argmax_h  (f_h + Σ_s λ_s·score_sh) / length_h            Clark et al. 2020, §3.2 (length_h = 1)

λ is tried on a grid (all combinations for several scorers) and the one with the best metric over all lists kept; among
equals the smallest. Equal hypotheses are left in the recogniser's order. Every hypothesis comes with its statistics, so
that a λ costs one argmax and one sum. A scorer with λ = 0 is not asked: 0·(−inf) counts as 0.

Relations  `additive_metrics` gives statistics and metric.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from energylm.errors import ConfigError, DataError
from energylm.estimators.additive_metrics import AdditiveMetric, Floats

Integers = NDArray[np.int64]
MOST_COMBINATIONS = 100_000
FEWEST_LISTS = 2


@dataclass(frozen=True)
class ListScores:
    """U lists of at most H hypotheses: the recogniser's scores f, the scorers' (S, U, H), lengths. What is not there
    has f = −inf and so is never chosen; nor is an empty hypothesis, whose score would be 0 and beat every text."""

    base_UH: Floats
    scores_SUH: Floats
    length_UH: Floats

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
    if lists < FEWEST_LISTS:
        raise DataError(
            f"λ cannot be tuned on {lists} list{'' if lists == 1 else 's'}: any λ that happens to suit it would win; "
            "give a dev set of some hundred lists, or a fixed λ"
        )
    values = grid if scorers == 1 else (0.0, *grid)
    if len(values) ** scorers > MOST_COMBINATIONS:
        raise ConfigError(
            f"{len(values)} values of λ for each of {scorers} scorers make {len(values) ** scorers:,} combinations, "
            f"more than {MOST_COMBINATIONS:,}; take a coarser grid or fewer scorers"
        )
    tried = [weights for weights in product(values, repeat=scorers) if any(weights)]
    totals = [statistics_UHM[np.arange(lists), scores.choose(weights)[0]].sum(0) for weights in tried]
    metrics = metric.value(np.stack(totals))
    sign = 1 if metric.lower_is_better else -1
    best = min(range(len(tried)), key=lambda index: (sign * metrics[index], sum(tried[index])))
    return Tuning(tried[best], float(metrics[best]), tuple(tried), tuple(metrics.tolist()), lists)
