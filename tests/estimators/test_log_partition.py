"""Both estimates of log Z against exact expectations over every set of n draws.

The language has 3 tokens and 2 steps: 9 sequences, so E[f(x_1 … x_n)] is a sum over C(9 + n − 1, n) multisets.
"""

import math

import pytest
import torch

from energylm.errors import ConfigError
from energylm.estimators.log_partition import log_partition
from energylm.numerics.importance import leave_one_out_log_sum
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    enumerate_expectation,
    exact_joint,
    exact_language_model,
)

MODEL = TabularLanguageModel.random(3, 2, seed=4)
ENERGY = TabularEnergy.random(3, 2, seed=5, scale=1.5)
BASE = exact_language_model(MODEL, max_new_tokens=2)
LOG_Z = exact_joint(MODEL, ENERGY, max_new_tokens=2).log_partition
LOG_WEIGHT = -ENERGY.energies(BASE.tokens, BASE.lengths)


def expectation(statistic, n):
    return float(enumerate_expectation(BASE.probabilities, lambda draws: statistic(LOG_WEIGHT[draws]), n=n))


def plain_upper(log_weight_MN):
    """Theorem 2 as printed: the leave-one-out estimates one by one, no rearranging."""
    n = log_weight_MN.shape[1]
    whole = (log_weight_MN.exp().sum(1) / n).log()
    parts = [log_weight_MN[:, [j for j in range(n) if j != i]].exp().sum(1) / (n - 1) for i in range(n)]
    return (2 * n - 1) * whole - 2 * (n - 1) * torch.stack(parts).log().mean(0)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_stable_form_equals_the_theorem(n):
    assert expectation(lambda w: log_partition(w).upper, n) == pytest.approx(expectation(plain_upper, n), abs=1e-10)
    draws = torch.randn(50, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 3
    torch.testing.assert_close(log_partition(draws).upper, plain_upper(draws), atol=1e-9, rtol=0)


def test_lower_is_below_log_z_for_every_n_and_rises():
    values = [expectation(lambda w: log_partition(w).lower, n) for n in (2, 3, 4, 5, 6)]
    assert all(value <= LOG_Z for value in values)
    assert values == sorted(values)


def test_the_estimates_close_in_on_log_z():
    """Bias of T_n is −a/n + O(1/n²), of the upper estimate +a/n: their expectations straddle log Z, ever closer."""
    gaps = [expectation(lambda w: log_partition(w).upper - log_partition(w).lower, n) for n in (3, 6)]
    assert 0 < gaps[1] < gaps[0]
    assert expectation(lambda w: log_partition(w).upper, 6) > LOG_Z


def test_forgetting_the_leave_one_out_term_is_caught():
    """Deliberate mistake: T_{n−1} from the first n − 1 draws only is right in expectation but not on every sample."""
    draws = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    naive = 7 * log_partition(draws).lower - 6 * log_partition(draws[:, :3]).lower
    assert (naive < log_partition(draws).lower).any()
    assert (log_partition(draws).upper >= log_partition(draws).lower).all()


def test_upper_is_not_a_bound_for_small_n():
    """Weight 1,000 with probability 0.001, else 1, n = 100: E[upper] is about 0.50 while log Z = log 1.999 = 0.69."""
    n, expected_upper = 100, 0.0
    for heavy in range(12):  # more than 11 heavy draws of 100 have a probability below 1e-20
        weight = torch.zeros(1, n, dtype=torch.float64)
        weight[0, :heavy] = math.log(1000)
        chance = math.comb(n, heavy) * 0.001**heavy * 0.999 ** (n - heavy)
        expected_upper += chance * float(log_partition(weight).upper)
    assert expected_upper == pytest.approx(0.50, abs=0.01) and expected_upper < math.log(1.999)


@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_energies_of_a_hundred_are_stable_and_shifts_pass_through(shift):
    draws = torch.tensor([[0.0, -1.0, 2.0, 0.5], [100.0, -100.0, 0.0, 50.0]], dtype=torch.float64)
    here, there = log_partition(draws), log_partition(draws + shift)
    for name in ("lower", "upper", "ess", "standard_error"):
        moved = shift if name in ("lower", "upper") else 0.0
        torch.testing.assert_close(getattr(there, name), getattr(here, name) + moved, atol=1e-9, rtol=1e-9)
        assert getattr(there, name).isfinite().all()


def test_leave_one_out_where_one_weight_is_almost_everything():
    """w = (e^50, e^-20, e^-21): without the first, log(e^-20 + e^-21); the rounded 1 − p_1 would be 0."""
    result = leave_one_out_log_sum(torch.tensor([50.0, -20.0, -21.0], dtype=torch.float64))
    expected = torch.tensor([-20 + math.log1p(math.exp(-1)), 50.0, 50.0], dtype=torch.float64)
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


def test_standard_error_and_ess_by_hand():
    """Weights 1 and 3: p = ¼, ¾; ESS = 1/(1/16 + 9/16) = 1.6; se² = (10/16 − ½)·2 = ¼ = (s/√n / mean)² = (√2/√2/2)²."""
    estimate = log_partition(torch.tensor([[0.0, math.log(3)]]))
    assert float(estimate.ess) == pytest.approx(1.6)
    assert float(estimate.standard_error) == pytest.approx(0.5)
    assert float(estimate.largest_share) == pytest.approx(0.75)
    assert "worth fewer than 20 independent ones" in estimate.warning
    assert log_partition(torch.zeros(1, 100)).warning is None


@pytest.mark.parametrize(("weights", "complaint"), [([[0.0]], "at least 2 samples"), ([[0.0, math.nan]], "not finite")])
def test_bad_input(weights, complaint):
    with pytest.raises(ConfigError, match=complaint):
        log_partition(torch.tensor(weights))
