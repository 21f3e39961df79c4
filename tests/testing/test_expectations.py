"""Expectations over all sets of draws: against ordered tuples, against closed forms, and for the estimators to come."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from energylm.testing import enumerate_expectation
from energylm.testing import enumeration as expectations_module

P = torch.tensor([0.5, 0.2, 0.0, 0.3], dtype=torch.float64)
LOG_WEIGHT = torch.tensor([0.0, 2.0, math.nan, -1.0], dtype=torch.float64)  # nothing reads the impossible outcome


def log_mean_weight(outcomes_MN):
    return LOG_WEIGHT[outcomes_MN].logsumexp(-1) - math.log(outcomes_MN.shape[1])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_multisets_equal_ordered_tuples(n):
    plain = 0.0
    for outcomes in itertools.product([0, 1, 3], repeat=n):
        weight = math.prod(float(P[o]) for o in outcomes)
        plain += weight * math.log(sum(math.exp(LOG_WEIGHT[o]) for o in outcomes) / n)
    assert math.isclose(enumerate_expectation(P, log_mean_weight, n=n), plain, rel_tol=1e-12)


def test_moments_in_closed_form():
    """E[mean] = μ, E[mean²] = μ² + σ²/n; the plain mistake, every multiset weighted alike, gives another number."""
    value = torch.tensor([1.0, 4.0, 0.0, -2.0], dtype=torch.float64)
    mean, variance = P @ value, P @ value**2 - (P @ value) ** 2

    def moments(outcomes_MN):
        average = value[outcomes_MN].mean(1)
        return torch.stack([torch.ones_like(average), average, average**2], dim=1)

    expected = torch.stack([torch.ones(()).double(), mean, mean**2 + variance / 4])
    assert_close(enumerate_expectation(P, moments, n=4), expected)
    sets = torch.tensor(list(itertools.combinations_with_replacement([0, 1, 3], 4)))
    unweighted = P[sets].prod(1)
    assert abs(float(unweighted.sum()) - 1) > 0.1


def test_the_log_of_a_mean_is_below_the_log_of_its_expectation_for_every_n():
    """Jensen: E[T_n] ≤ log Z, rising with n (Deng et al. 2020, theorem 2)."""
    log_partition = float((P[P > 0] * LOG_WEIGHT[P > 0].exp()).sum().log())
    values = [float(enumerate_expectation(P, log_mean_weight, n=n)) for n in range(1, 9)]
    assert values == sorted(values) and values[-1] < log_partition
    assert log_partition - values[-1] < (log_partition - values[0]) / 4


def test_chunks_change_nothing(monkeypatch):
    whole = enumerate_expectation(P, log_mean_weight, n=6)
    monkeypatch.setattr(expectations_module, "CHUNK", 7)
    assert_close(enumerate_expectation(P, log_mean_weight, n=6), whole)


@pytest.mark.parametrize(
    ("probabilities", "n"), [(P * 2, 1), (P, 0), (torch.full((1000,), 1e-3), 4), (torch.tensor([1.5, -0.5]), 1)]
)
def test_misuse_is_refused(probabilities, n):
    with pytest.raises(ValueError):
        enumerate_expectation(probabilities, log_mean_weight, n=n)
