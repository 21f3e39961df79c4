"""How well a score tells machine text from real, with bootstrap intervals. Higher score = machine (an energy is one).

    balanced accuracy   ½ · P(s_real < t) + ½ · P(s_machine > t)                 a score equal to t counts half
    AUROC               P(s_machine > s_real) + ½ · P(s_machine = s_real)        over all pairs (Mann–Whitney)
    TPR at α FPR        P(s_machine > t_α),  t_α the lowest real score with P(s_real > t_α) ≤ α

Each comes with a 95 % percentile interval: groups (texts) are drawn anew with replacement, `resamples` times, each with
all its rows, since the overlapping blocks of a text and the k continuations of a context are no independent evidence.
The number of groups of either class stays as it is; a group that both classes name (a context with its real and its
generated ending) is drawn for both at once. A resample is a vector of counts on rows that are sorted once, so it costs
cumulative sums, no sorting. Thresholds t_α are found anew in each resample; `threshold` was fixed beforehand and stays.

Fewer than ⌈1/α⌉ − 1 real texts (99 for 1 %, 19 for 5 %) show no rate as low as α: above their highest score lies a new
real text with a higher probability. TPR at α is then left out, not guessed.

Use it     on texts that fitted neither weights nor threshold.
Relations  `perplexity` has a closed-form error; ranks and thresholds have none that holds for few texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energylm.errors import ConfigError, DataError, ModelError
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.randomness import derive_seed
from energylm.records import Record

FALSE_POSITIVE_RATES = (0.01, 0.05)
TAIL = 0.025  # on either side of a 95 % interval
_CHUNK_VALUES = 1 << 22  # counts held at a time, 32 MB

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Interval(Record):
    value: float
    lower: float
    upper: float

    computed = ("ends", "percent", "percent_ends")

    @property
    def ends(self) -> str:
        return f"{self.lower:.3f}–{self.upper:.3f}"

    @property
    def percent(self) -> float:
        return 100 * self.value

    @property
    def percent_ends(self) -> str:
        return f"{100 * self.lower:.1f}–{100 * self.upper:.1f}"

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.lower:.3f}, {self.upper:.3f}]"


@dataclass(frozen=True)
class Discrimination(Record):
    balanced_accuracy: Interval
    auroc: Interval
    tpr_at_1: Interval | None  # machine text found where 1 % of real text is flagged; none: too few real texts
    tpr_at_5: Interval | None
    threshold: float  # of the balanced accuracy
    real: int  # rows
    machine: int
    real_groups: int
    machine_groups: int
    resamples: int


def discrimination(
    real_scores_N: ArrayLike,
    machine_scores_M: ArrayLike,
    *,
    threshold: float = 0.0,
    real_groups: ArrayLike | None = None,
    machine_groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Discrimination:
    """All measures of scores of real and of machine text. Groups name the text of each row; none = a text a row."""
    if resamples < 1:
        raise ConfigError(f"a bootstrap needs at least 1 resample, came {resamples}; 1,000 is usual")
    real, machine = _scores(real_scores_N, "real"), _scores(machine_scores_M, "machine")
    groups = _Groups(_labels(real_groups, real, "real"), _labels(machine_groups, machine, "machine"))
    rows = _SortedRows(real, machine, threshold)
    point_4 = rows.measures(np.ones((1, len(real))), np.ones((1, len(machine))))[0]
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    parts = [rows.measures(*counts) for counts in groups.resampled(rng, resamples)]
    lower_4, upper_4 = np.quantile(np.concatenate(parts), [TAIL, 1 - TAIL], axis=0)
    accuracy, auroc, *at_rates = (Interval(*map(float, ends)) for ends in zip(point_4, lower_4, upper_4, strict=True))
    at_1, at_5 = (
        value if groups.real_count >= texts_needed(rate) else None
        for rate, value in zip(FALSE_POSITIVE_RATES, at_rates, strict=True)
    )
    return Discrimination(
        balanced_accuracy=accuracy,
        auroc=auroc,
        tpr_at_1=at_1,
        tpr_at_5=at_5,
        threshold=threshold,
        real=len(real),
        machine=len(machine),
        real_groups=groups.real_count,
        machine_groups=groups.machine_count,
        resamples=resamples,
    )


class _SortedRows:
    """Both classes sorted by score, and where the scores of one fall among those of the other."""

    def __init__(self, real_N: Floats, machine_M: Floats, threshold: float) -> None:
        self.real_order, self.machine_order = np.argsort(real_N), np.argsort(machine_M)
        real_N, machine_M = real_N[self.real_order], machine_M[self.machine_order]
        self.below_M, self.to_M = _bounds(real_N, machine_M)  # real rows below, and up to, each machine score
        self.to_N = np.searchsorted(real_N, real_N, side="right")
        self.machine_to_N = np.searchsorted(machine_M, real_N, side="right")
        self.real_cut = [int(end) for end in _bounds(real_N, threshold)]
        self.machine_cut = [int(end) for end in _bounds(machine_M, threshold)]

    def measures(self, real_RN: Floats, machine_RM: Floats) -> Floats:
        """(R, 4): the measures when each row counts as often as it says, in the order of `Discrimination`."""
        machine_RM = machine_RM[:, self.machine_order]
        real_sum_R, machine_sum_R = _cumulative(real_RN[:, self.real_order]), _cumulative(machine_RM)
        real_total_R, machine_total_R = real_sum_R[:, -1], machine_sum_R[:, -1]
        real_below_R = (real_sum_R[:, self.real_cut[0]] + real_sum_R[:, self.real_cut[1]]) / 2
        machine_below_R = (machine_sum_R[:, self.machine_cut[0]] + machine_sum_R[:, self.machine_cut[1]]) / 2
        accuracy_R = (real_below_R / real_total_R + 1 - machine_below_R / machine_total_R) / 2
        won_RM = (real_sum_R[:, self.below_M] + real_sum_R[:, self.to_M]) / 2
        auroc_R = (machine_RM * won_RM).sum(1) / (real_total_R * machine_total_R)
        flagged_RN = real_total_R[:, None] - real_sum_R[:, self.to_N]  # real rows above each real score
        rates = []
        for rate in FALSE_POSITIVE_RATES:
            lowest_R = (flagged_RN <= rate * real_total_R[:, None] + 1e-9).argmax(1)
            missed_R = np.take_along_axis(machine_sum_R, self.machine_to_N[lowest_R][:, None], axis=1)[:, 0]
            rates.append(1 - missed_R / machine_total_R)
        return np.stack([accuracy_R, auroc_R, *rates], axis=1)


class _Groups:
    """Which rows belong together, in three strata: groups of real text, of machine text, and of both."""

    def __init__(self, real_N: NDArray[Any], machine_M: NDArray[Any]) -> None:
        real_names, self.real_N = np.unique(real_N, return_inverse=True)
        machine_names, self.machine_M = np.unique(machine_M, return_inverse=True)
        self.real_count, self.machine_count = len(real_names), len(machine_names)
        _, self.real_shared, self.machine_shared = np.intersect1d(real_names, machine_names, return_indices=True)
        self.real_alone = np.setdiff1d(np.arange(self.real_count), self.real_shared)
        self.machine_alone = np.setdiff1d(np.arange(self.machine_count), self.machine_shared)

    def resampled(self, rng: np.random.Generator, resamples: int) -> Iterator[tuple[Floats, Floats]]:
        """How often each row counts, (R, N) and (R, M), some resamples at a time."""
        chunk = max(1, _CHUNK_VALUES // max(len(self.real_N), len(self.machine_M)))
        for start in range(0, resamples, chunk):
            size = min(chunk, resamples - start)
            real_RG = np.empty((size, self.real_count))
            machine_RG = np.empty((size, self.machine_count))
            real_RG[:, self.real_alone] = _draw(rng, size, len(self.real_alone))
            machine_RG[:, self.machine_alone] = _draw(rng, size, len(self.machine_alone))
            shared_RG = _draw(rng, size, len(self.real_shared))
            real_RG[:, self.real_shared], machine_RG[:, self.machine_shared] = shared_RG, shared_RG
            yield real_RG[:, self.real_N], machine_RG[:, self.machine_M]


def _draw(rng: np.random.Generator, resamples: int, groups: int) -> Integers:
    """(R, G): how often each group comes in draws of as many groups with replacement."""
    chosen = rng.integers(0, max(groups, 1), size=(resamples, groups)) + groups * np.arange(resamples)[:, None]
    return np.bincount(chosen.ravel(), minlength=resamples * groups).reshape(resamples, groups)


def _cumulative(counts_RN: Floats) -> Floats:
    """(R, N + 1): the sum of the first n counts."""
    return np.concatenate([np.zeros((len(counts_RN), 1)), counts_RN.cumsum(1)], axis=1)


def _bounds(sorted_N: Floats, values: ArrayLike) -> tuple[Any, Any]:
    return np.searchsorted(sorted_N, values, side="left"), np.searchsorted(sorted_N, values, side="right")


def _scores(values: ArrayLike, label: str) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1:
        raise DataError(f"scores of {label} text must be one a row, came shape {scores.shape}; flatten them first")
    if not len(scores):
        raise DataError(
            f"one class only: there is no score of {label} text; discrimination needs real and machine text"
        )
    if np.isnan(scores).any():
        raise ModelError(f"a score of {label} text is not a number; the model's weights are damaged or overflow")
    return scores


def _labels(groups: ArrayLike | None, scores: Floats, label: str) -> NDArray[Any]:
    """Group names; rows without any are named apart from each other and from the other class."""
    if groups is None:
        return np.array([f"{label} row {row}" for row in range(len(scores))])
    names = np.asarray(groups)
    if names.shape != scores.shape:
        raise DataError(f"{len(scores)} scores of {label} text but groups of shape {names.shape}; name one a score")
    return names
