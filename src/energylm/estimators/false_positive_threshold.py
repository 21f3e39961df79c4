"""Thresholds that call at most a share α of human texts machine, from n human texts; no assumption on the scores.

    t = the k-th smallest of n scores,  k = ⌈(n + 1)(1 − α)⌉             split conformal prediction (Vovk et al. 2005)

A new human text scores above t with probability at most (n + 1 − k)/(n + 1) ≤ α, if it comes from where the n came
from: its rank among all n + 1 is uniform. The quantile of the sample itself (k = ⌈n(1 − α)⌉) would break that promise.
k must not exceed n, so at least ⌈1/α⌉ − 1 texts are needed. The promise is an average over calibration sets: with
*these* n texts the rate is Beta(n + 1 − k, k) distributed, and `upper_95` is what it stays below 95 times in 100.

`thresholds_by_group` promises more: α within each group of texts (say, of one length) that is large enough, and α for
the small groups taken together. A group is small if it has fewer than 1/α of the n + 1 texts, the new one included.
That does not depend on which of them is new, so ranks are uniform in each large group and in the union of the small
ones (Mondrian conformal prediction, Vovk et al. 2005 §4.5), and α holds over all texts, too. Where the group of a new
text is not known, `raised_for_groups` takes the highest threshold of the large groups: it keeps α in each of them.

`shifted_threshold` promises α for human texts from elsewhere, of which some were seen without labels. Their density
over that of the calibration, w(x), is the odds of a classifier between the two; both class labels and scores must hang
on x alike in both places (covariate shift; Tibshirani et al. 2019).

    t(x) = the smallest score with  Σ_{i: s_i ≤ t} w_i ≥ (1 − α)(Σ_i w_i + w(x))

With t(x) a new text x is flagged with probability at most α, exactly. One threshold for all takes the mean weight of
the new texts for w(x), which keeps α nearly: 5.0 to 5.8 % where 5 % are asked, in the simulations of the tests. Where
no score is so large, the weights do not carry: the calibration texts must count as about 1/α texts of equal weight.

Use it     on human texts that trained nothing, read whole as the new ones are: a piece of a long text is no short text.
Relations  `discrimination` reports the rate of true positives at such thresholds.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energylm.errors import ConfigError, DataError, extra
from energylm.records import Record

_ROUNDING = 1e-9  # keeps (n + 1)·0.99 and 1/0.05 from being rounded up
_FOLDS = 5
_STRENGTH = 0.1  # inverse of L2, on standardised features

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FalsePositiveThreshold:
    """Scores above `threshold`, the `rank`-th smallest of so many `texts`, are called machine."""

    threshold: float
    asked_rate: float
    rank: int
    texts: int

    @property
    def expected_rate(self) -> float:
        """At most `asked_rate`: what the number of texts allows."""
        return (self.texts + 1 - self.rank) / (self.texts + 1)

    @property
    def upper_95(self) -> float:
        """Of the rate that these texts lead to, if the texts are independent."""
        with extra("detect"):
            from scipy.stats import beta

        return float(beta.ppf(0.95, self.texts + 1 - self.rank, self.rank))


@dataclass(frozen=True)
class GroupThresholds:
    """Thresholds of the groups that are large enough, and one for the small ones together (none: too few texts)."""

    own: dict[Hashable, FalsePositiveThreshold]
    rest: FalsePositiveThreshold | None
    rest_texts: int

    def of(self, group: Hashable) -> FalsePositiveThreshold | None:
        return self.own.get(group, self.rest)


def texts_needed(rate: float) -> int:
    """The fewest human texts that allow a threshold for this false-positive rate."""
    if not 0 < rate < 1:
        raise ConfigError(f"a false-positive rate of {rate} came; it must lie between 0 and 1, e.g. 0.01")
    return max(1, math.ceil(1 / rate - _ROUNDING) - 1)


def false_positive_threshold(human_scores_N: ArrayLike, rate: float) -> FalsePositiveThreshold:
    """The threshold for these scores of human text; higher score = machine."""
    scores = np.sort(np.asarray(human_scores_N, dtype=np.float64).ravel())
    texts, needed = len(scores), texts_needed(rate)
    if texts < needed:
        raise DataError(
            f"too few human texts: a false-positive rate of {rate:.3g} needs at least {needed:,}, came {texts:,}; "
            f"add {needed - texts:,}, or ask for {1 / (texts + 1):.2g} or more"
        )
    if not np.isfinite(scores).all():
        raise DataError("a score of human text is not finite; the model's weights are damaged")
    rank = max(1, math.ceil((texts + 1) * (1 - rate) - _ROUNDING))
    return FalsePositiveThreshold(float(scores[rank - 1]), rate, rank, texts)


def thresholds_by_group(human_scores_N: ArrayLike, groups_N: Sequence[Hashable], rate: float) -> GroupThresholds:
    """A threshold for each group of human texts, which `groups_N` names a score; groups without texts are small."""
    scores, needed = np.asarray(human_scores_N, dtype=np.float64).ravel(), texts_needed(rate)
    if len(scores) != len(groups_N):
        raise DataError(f"{len(scores)} scores of human text but {len(groups_N)} groups; name one a score")
    by_group: dict[Hashable, list[float]] = {}
    for group, score in zip(groups_N, scores.tolist(), strict=True):
        by_group.setdefault(group, []).append(score)
    own = {group: false_positive_threshold(of, rate) for group, of in by_group.items() if len(of) >= needed}
    # A group of exactly `needed` texts is large with the new text in it, and small when the new text is in another.
    rest = [score for of in by_group.values() if len(of) <= needed for score in of]
    return GroupThresholds(own, false_positive_threshold(rest, rate) if len(rest) >= needed else None, len(rest))


def raised_for_groups(
    threshold: FalsePositiveThreshold, human_scores_N: ArrayLike, groups_N: Sequence[Hashable]
) -> FalsePositiveThreshold:
    """The threshold, which these scores gave, raised so that its rate is also kept within each group that has enough of
    them, whichever of the groups a new text is from."""
    own = thresholds_by_group(human_scores_N, groups_N, threshold.asked_rate).own.values()
    return replace(threshold, threshold=max([threshold.threshold, *(group.threshold for group in own)]))


@dataclass(frozen=True)
class GroupRate(Record):
    """Human texts of a group that were called machine, with the exact 95 % interval of their share."""

    group: str
    texts: int
    flagged: int
    lower: float
    upper: float

    computed = ("share",)

    @classmethod
    def of(cls, group: str, flagged: int, texts: int) -> "GroupRate":
        with extra("detect"):
            from scipy.stats import binomtest

        interval = binomtest(flagged, texts).proportion_ci(0.95, method="exact")
        return cls(group, texts, flagged, float(interval.low), float(interval.high))

    @property
    def share(self) -> float:
        return self.flagged / self.texts

    def __str__(self) -> str:
        return f"{self.flagged:,} of {self.texts:,} ({self.lower:.1%} to {self.upper:.1%})"


def rates_by_group(groups_N: Sequence[str], flagged_N: Sequence[bool]) -> tuple[GroupRate, ...]:
    """The group with the highest share first."""
    counts: dict[str, list[bool]] = {}
    for group, flagged in zip(groups_N, flagged_N, strict=True):
        counts.setdefault(group, []).append(bool(flagged))
    rates = [GroupRate.of(group, sum(of_group), len(of_group)) for group, of_group in counts.items()]
    return tuple(sorted(rates, key=lambda rate: (-rate.share, -rate.lower, rate.group)))


@dataclass(frozen=True)
class ShiftedThreshold:
    """Scores above `threshold` are called machine: about `asked_rate` of human texts from the new place or fewer. None:
    the calibration texts do not carry so far."""

    threshold: float | None
    asked_rate: float
    effective_texts: float  # (Σ w)² / Σ w²: so many texts of equal weight say as much
    texts: int
    new_texts: int  # unlabelled, that the weights come from


@dataclass(frozen=True)
class ShiftWeights:
    """(N,) and (M,) densities of the new place over those of the calibration, at the texts of either."""

    calibration: Floats
    new: Floats


def shift_weights(calibrationD: ArrayLike, new_MD: ArrayLike) -> ShiftWeights:
    """The odds that a text is new, by logistic regression on D features with both places weighing the same. Each text
    is judged by a fit on other texts."""
    with extra("detect"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

    calibration, new = (np.asarray(part, dtype=np.float64) for part in (calibrationD, new_MD))
    if min(len(calibration), len(new)) < 2 * _FOLDS:
        raise DataError(
            f"weights need {2 * _FOLDS} texts or more of either place, came {len(calibration):,} of the calibration "
            f"and {len(new):,} new ones; add some"
        )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=_STRENGTH, class_weight="balanced"))
    is_new = np.repeat([0, 1], [len(calibration), len(new)])
    features = np.concatenate([calibration, new])
    log_odds = cross_val_predict(model, features, is_new, cv=folds, method="decision_function")
    weights = np.exp(log_odds)
    return ShiftWeights(weights[: len(calibration)], weights[len(calibration) :])


def weighted_threshold(human_scores_N: ArrayLike, weights_N: ArrayLike, rate: float, *, new: float) -> float | None:
    """The threshold for a text of weight `new`; None: the weights of the calibration texts are too small beside it."""
    scores, weights = (np.asarray(values, dtype=np.float64).ravel() for values in (human_scores_N, weights_N))
    if len(scores) != len(weights):
        raise DataError(f"{len(scores)} scores of human text but {len(weights)} weights; give one a score")
    if not (np.isfinite(scores).all() and np.isfinite(weights).all()):
        raise DataError("a score or weight of human text is not finite; the model's weights are damaged")
    order = np.argsort(scores, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(weights[order])])
    rank = int(np.searchsorted(mass[1:], (1 - rate) * (mass[-1] + new) * (1 - _ROUNDING)))
    return float(scores[order[rank]]) if rank < len(scores) else None


def shifted_threshold(human_scores_N: ArrayLike, weights: ShiftWeights, rate: float) -> ShiftedThreshold:
    """The threshold for human texts of the new place."""
    threshold = weighted_threshold(human_scores_N, weights.calibration, rate, new=float(weights.new.mean()))
    total, squares = weights.calibration.sum(), np.square(weights.calibration).sum()
    effective = float(total**2 / squares) if squares > 0 else 0.0
    return ShiftedThreshold(threshold, rate, effective, len(weights.calibration), len(weights.new))
