"""Is one system better than another on the same texts? Paired bootstrap over texts (Koehn 2004).

Texts are drawn anew with replacement, the same for both systems, and the metric of each follows from summed statistics.

    p = (1 + #resamples in which the second is not better) / (1 + #resamples)        one-sided

Intervals are 95 % percentile intervals of the same resamples.

Relations  `additive_metrics` gives the statistics; `discrimination` bootstraps ranks, which do not add up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energylm.estimators.additive_metrics import AdditiveMetric, Floats
from energylm.estimators.discrimination import TAIL
from energylm.randomness import derive_seed
from energylm.records import Record

_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class MetricInterval(Record):
    """In the metric's own unit: per cent for word error rates and BLEU."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class PairedComparison(Record):
    first: MetricInterval
    second: MetricInterval
    difference: MetricInterval  # second − first
    p_value: float  # of "the second is no better"
    texts: int
    resamples: int


def paired_bootstrap(
    first_UM: Floats, second_UM: Floats, metric: AdditiveMetric, *, resamples: int, seed: int
) -> PairedComparison:
    """Compare two systems by their statistics (U texts, M each)."""
    both_USM = np.stack([first_UM, second_UM], axis=1)
    values_RS = np.concatenate(
        [
            metric.value(np.tensordot(counts_RU, both_USM, axes=1))
            for counts_RU in _resampled_counts(len(first_UM), resamples, seed=seed)
        ]
    )
    measured_S = metric.value(both_USM.sum(0))
    change_R = values_RS[:, 1] - values_RS[:, 0]
    better_R = change_R < 0 if metric.lower_is_better else change_R > 0
    return PairedComparison(
        first=_interval(measured_S[0], values_RS[:, 0]),
        second=_interval(measured_S[1], values_RS[:, 1]),
        difference=_interval(measured_S[1] - measured_S[0], change_R),
        p_value=float((1 + (~better_R).sum()) / (1 + resamples)),
        texts=len(first_UM),
        resamples=resamples,
    )


def _resampled_counts(texts: int, resamples: int, *, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each text is drawn, (R, U), a chunk of resamples at a time."""
    generator = np.random.default_rng(derive_seed(seed, "paired bootstrap"))
    share = np.full(texts, 1 / texts)
    at_once = max(1, _CHUNK_VALUES // texts)
    for start in range(0, resamples, at_once):
        yield generator.multinomial(texts, share, size=min(at_once, resamples - start)).astype(float)


def _interval(value: float, resampled_R: Floats) -> MetricInterval:
    lower, upper = np.quantile(resampled_R, (TAIL, 1 - TAIL))
    return MetricInterval(float(value), float(lower), float(upper))
