"""The threshold that calls at most a share α of human texts machine, from n human texts; no assumption on the scores.

    t = the k-th smallest of n scores,  k = ⌈(n + 1)(1 − α)⌉             split conformal prediction (Vovk et al. 2005)

A new human text scores above t with probability at most (n + 1 − k)/(n + 1) ≤ α, if it comes from where the n came
from: its rank among all n + 1 is uniform. The quantile of the sample itself (k = ⌈n(1 − α)⌉) would break that promise.
k must not exceed n, so at least ⌈1/α⌉ − 1 texts are needed. The promise is an average over calibration sets: with
*these* n texts the rate is Beta(n + 1 − k, k) distributed, and `upper_95` is what it stays below 95 times in 100.

Use it     on human texts that trained nothing, of the kind and length that the detector will meet.
Relations  `discrimination` reports the rate of true positives at such thresholds.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from energylm.errors import ConfigError, DataError


@dataclass(frozen=True)
class FalsePositiveThreshold:
    """Scores above `threshold` are called machine."""

    threshold: float
    asked_rate: float
    expected_rate: float  # at most `asked_rate`: what the number of texts allows
    upper_95: float  # of the rate that these texts lead to
    texts: int


def texts_needed(rate: float) -> int:
    """The fewest human texts that allow a threshold for this false-positive rate."""
    if not 0 < rate < 1:
        raise ConfigError(f"a false-positive rate of {rate} came; it must lie between 0 and 1, e.g. 0.01")
    return max(1, math.ceil(1 / rate - 1e-9) - 1)


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
    place = max(1, math.ceil((texts + 1) * (1 - rate) - 1e-9))  # the 1e-9 keeps (n + 1)·0.99 from being rounded up
    above = texts + 1 - place
    return FalsePositiveThreshold(
        threshold=float(scores[place - 1]),
        asked_rate=rate,
        expected_rate=above / (texts + 1),
        upper_95=float(beta.ppf(0.95, above, place)),
        texts=texts,
    )
