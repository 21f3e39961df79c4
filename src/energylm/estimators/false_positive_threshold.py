"""The threshold that calls at most a share α of human texts machine, from n human texts; no assumption on the scores.

    t = the k-th smallest of n scores,  k = ⌈(n + 1)(1 − α)⌉             split conformal prediction (Vovk et al. 2005)

A new human text scores above t with probability at most (n + 1 − k)/(n + 1) ≤ α, if it comes from where the n came
from: its rank among all n + 1 is uniform. The quantile of the sample itself (k = ⌈n(1 − α)⌉) would break that promise.
k must not exceed n, so at least ⌈1/α⌉ − 1 texts are needed. The promise is an average over calibration sets: with
*these* n texts the rate is Beta(n + 1 − k, k) distributed, and `upper_95` is what it stays below 95 times in 100.

`thresholds_by_group` promises more: α within each group of texts (say, of one length) that is large enough, and α for
the small groups taken together. A group is small if it has fewer than 1/α of the n + 1 texts, the new one included.
That does not depend on which of them is new, so ranks are uniform in each large group and in the union of the small
ones (Mondrian conformal prediction, Vovk et al. 2005 §4.5), and α holds over all texts, too.

Use it     on human texts that trained nothing, read whole as the new ones are: a piece of a long text is no short text.
Relations  `discrimination` reports the rate of true positives at such thresholds.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from energylm.errors import ConfigError, DataError

_ROUNDING = 1e-9  # keeps (n + 1)·0.99 and 1/0.05 from being rounded up


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
