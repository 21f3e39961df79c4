"""Statistical checks that say beforehand how often they fail by chance.

    counts    X² = Σ_i (c_i − N p_i)² / (N p_i)  ~  χ²(cells − 1)          cells expected fewer than 10 times are merged
    means     t = (mean − expected) / (s / √n)   ~  Student(n − 1)         two samples: Welch's t

`false_alarm` is the probability that a right sampler fails the check: 1e-4 lets a suite of a hundred such checks, with
fresh seeds every day, fail by chance about once in a hundred days. With fixed seeds a check that passed keeps passing.

Use it     for independent draws only: consecutive states of a chain are dependent, so test end states of many chains.
Relations  `exact` supplies the probabilities; where paths can be enumerated (`choices`), no statistics are needed.
"""

import math

import torch
from torch import Tensor

from energylm.errors import extra

with extra("testing"):
    from scipy import stats

FALSE_ALARM = 1e-4
MIN_EXPECTED = 10.0  # below this the χ² law of a cell is too rough for tails of 1e-4
MIN_SAMPLES = 30


def assert_same_distribution(counts: Tensor, probabilities: Tensor, *, false_alarm: float = FALSE_ALARM) -> None:
    """Fail unless `counts` of independent draws look drawn from `probabilities`; an impossible one fails outright."""
    counts, probabilities = torch.as_tensor(counts).double(), torch.as_tensor(probabilities).double()
    _check_counts(counts, probabilities, false_alarm)
    if not (probabilities >= 0).all() or abs(float(probabilities.sum()) - 1) > 1e-6:
        raise ValueError(f"probabilities must be ≥ 0 and sum to 1, they sum to {float(probabilities.sum()):.8f}")
    impossible = (counts > 0) & (probabilities == 0)
    if impossible.any():
        cell = int(impossible.nonzero()[0])
        raise AssertionError(f"outcome {cell} is impossible (probability 0) but was drawn {int(counts[cell])} times")
    expected = counts.sum() * probabilities
    groups = _merged(expected)
    observed_G, expected_G = _sums(counts, groups), _sums(expected, groups)
    statistic = float(((observed_G - expected_G) ** 2 / expected_G).sum())
    _judge_chi_square(
        statistic, len(expected_G) - 1, false_alarm, "counts differ from the declared probabilities", groups
    )


def assert_same_counts(first: Tensor, second: Tensor, *, false_alarm: float = FALSE_ALARM) -> None:
    """Fail unless two samples, given as counts of the same outcomes, look drawn from one distribution."""
    first, second = torch.as_tensor(first).double(), torch.as_tensor(second).double()
    _check_counts(first, second, false_alarm)
    _check_counts(second, first, false_alarm)
    both = first + second
    share = first.sum() / both.sum()
    groups = _merged(both * torch.minimum(share, 1 - share))
    first_G, both_G = _sums(first, groups), _sums(both, groups)
    statistic = float(((first_G - both_G * share) ** 2 / (both_G * share * (1 - share))).sum())
    _judge_chi_square(statistic, len(both_G) - 1, false_alarm, "the two samples' counts differ", groups)


def assert_mean(samples: Tensor, expected: float, *, false_alarm: float = FALSE_ALARM) -> None:
    """Fail unless the mean of independent `samples` (n,) is `expected` within its error."""
    mean, error, freedom = _mean_and_error(samples, false_alarm)
    _judge_t(mean - float(expected), error, freedom, false_alarm, f"mean {mean:.6g} is not {float(expected):.6g}")


def assert_same_mean(first: Tensor, second: Tensor, *, false_alarm: float = FALSE_ALARM) -> None:
    """Fail unless two independent samples have the same mean within their errors (Welch)."""
    (mean_1, error_1, freedom_1), (mean_2, error_2, freedom_2) = (
        _mean_and_error(s, false_alarm) for s in (first, second)
    )
    error = (error_1**2 + error_2**2) ** 0.5
    freedom = error**4 / (error_1**4 / freedom_1 + error_2**4 / freedom_2) if error else freedom_1
    _judge_t(mean_1 - mean_2, error, freedom, false_alarm, f"means {mean_1:.6g} and {mean_2:.6g} differ")


def _judge_chi_square(statistic: float, freedom: int, false_alarm: float, complaint: str, groups: Tensor) -> None:
    if freedom < 1:
        raise ValueError(f"too few draws: at most one outcome is expected {MIN_EXPECTED:g} times; nothing to compare")
    threshold = float(stats.chi2.isf(false_alarm, freedom))
    if statistic > threshold:
        p = float(stats.chi2.sf(statistic, freedom))
        merged = len(groups) - freedom - 1
        raise AssertionError(
            f"{complaint}: chi-square {statistic:.5g} > {threshold:.5g} with {freedom} degrees of freedom "
            f"({merged} rare outcomes merged), p = {p:.2g} < false alarm {false_alarm:g}"
        )


def _judge_t(difference: float, error: float, freedom: float, false_alarm: float, complaint: str) -> None:
    statistic = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    threshold = float(stats.t.isf(false_alarm / 2, freedom))
    if abs(statistic) > threshold:
        p = 2 * float(stats.t.sf(abs(statistic), freedom))
        raise AssertionError(
            f"{complaint}: t = {statistic:.4g} beyond ±{threshold:.4g} with {freedom:.4g} degrees of freedom, "
            f"p = {p:.2g} < false alarm {false_alarm:g}"
        )


def _mean_and_error(samples: Tensor, false_alarm: float) -> tuple[float, float, float]:
    _check_false_alarm(false_alarm)
    samples = torch.as_tensor(samples).double()
    if samples.dim() != 1 or len(samples) < MIN_SAMPLES or not samples.isfinite().all():
        raise ValueError(
            f"needs at least {MIN_SAMPLES} finite samples in one dimension, came shape {tuple(samples.shape)}"
        )
    rounding = 1e-12 * float(samples.abs().max())  # constant samples still have this much error
    return float(samples.mean()), float(samples.std()) / len(samples) ** 0.5 + rounding, len(samples) - 1.0


def _merged(expected: Tensor) -> Tensor:
    """A group number for each cell: cells, rarest first, are put together until each group is expected often enough."""
    rarest_first, order = expected.sort()
    groups, mass, remaining = [0], 0.0, float(expected.sum())
    for cell in rarest_first.tolist():
        mass, remaining = mass + cell, remaining - cell
        full = mass >= MIN_EXPECTED and remaining >= MIN_EXPECTED
        groups.append(groups[-1] + full)
        mass = 0.0 if full else mass
    return torch.empty_like(order).scatter_(0, order, torch.tensor(groups[:-1]))


def _sums(values: Tensor, groups: Tensor) -> Tensor:
    return torch.zeros(int(groups.max()) + 1, dtype=torch.float64).index_add_(0, groups, values)


def _check_counts(counts: Tensor, companion: Tensor, false_alarm: float) -> None:
    _check_false_alarm(false_alarm)
    if counts.dim() != 1 or counts.shape != companion.shape:
        raise ValueError(f"needs two vectors of one length, came {tuple(counts.shape)} and {tuple(companion.shape)}")
    if not (counts >= 0).all() or (counts != counts.round()).any() or counts.sum() == 0:
        raise ValueError("counts must be whole numbers ≥ 0, not all 0")


def _check_false_alarm(false_alarm: float) -> None:
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm is a probability between 0 and 1, came {false_alarm}")
