"""Mixing of chains: by hand, against a process whose answer is known, and with chains that do not mix."""

import math

import pytest
import torch
from torch import Tensor

from energylm.estimators.mixing import autocorrelation, effective_draws, split_r_hat, spread


def autoregressive(chains: int, draws: int, *, phi: float, seed: int = 0) -> Tensor:
    """x_{t+1} = φ x_t + √(1 − φ²) ε: unit variance, correlation φ^t, worth n (1 − φ)/(1 + φ) independent draws."""
    noise = torch.randn(chains, draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = noise.clone()
    for t in range(1, draws):
        values[:, t] = phi * values[:, t - 1] + math.sqrt(1 - phi**2) * noise[:, t]
    return values


def test_r_hat_by_hand() -> None:
    """Halves [0, 2], [0, 2], [2, 4], [2, 4]: variances within 2, means 1, 1, 3, 3 with variance 4/3, n = 2:
    R̂² = 1/2 + (4/3)/2 = 7/6."""
    values = torch.tensor([[0.0, 2.0, 0.0, 2.0], [2.0, 4.0, 2.0, 4.0]])
    assert split_r_hat(values) == pytest.approx(math.sqrt(7 / 6))
    assert split_r_hat(torch.tensor([[0.0, 2.0, 9.0, 0.0, 2.0], [2.0, 4.0, 9.0, 2.0, 4.0]])) == pytest.approx(
        math.sqrt(7 / 6)
    )  # the middle draw of an odd number is in neither half


def test_r_hat_sees_chains_apart_and_chains_that_drift() -> None:
    mixed = autoregressive(4, 400, phi=0.3)
    assert split_r_hat(mixed) == pytest.approx(1.0, abs=0.02)
    assert split_r_hat(mixed + torch.tensor([[0.0], [0.0], [0.0], [3.0]])) > 1.3
    drifting = mixed + torch.linspace(0, 3, 400)
    assert split_r_hat(drifting) > 1.2
    assert drifting.mean(1).std() < 0.2  # whole chains agree: only their halves tell


def test_chains_that_stand_still() -> None:
    assert split_r_hat(torch.tensor([[1.0] * 6, [2.0] * 6])) == math.inf
    assert math.isnan(split_r_hat(torch.ones(2, 6))) and math.isnan(effective_draws(torch.ones(2, 6)))
    assert autocorrelation(torch.ones(2, 6)).isnan().all()
    assert math.isnan(split_r_hat(torch.rand(2, 3))) and math.isnan(effective_draws(torch.rand(2, 3)))


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.5, 0.9])
def test_effective_draws_of_a_known_process(phi: float) -> None:
    values = autoregressive(4, 5000, phi=phi)
    expected = values.numel() * (1 - phi) / (1 + phi)
    assert effective_draws(values) == pytest.approx(expected, rel=0.15)
    if phi == 0.9:
        assert effective_draws(values) < values.numel() / 10  # taking dependent draws for independent is far off


def test_chains_apart_are_worth_few_draws() -> None:
    apart = autoregressive(4, 500, phi=0.0) + torch.tensor([[-5.0], [0.0], [5.0], [10.0]])
    assert effective_draws(apart) < 20


def test_autocorrelation_by_brute_force() -> None:
    values = autoregressive(3, 50, phi=0.7)
    centred = values - values.mean(1, keepdim=True)
    covariance = torch.stack([(centred[:, : 50 - lag] * centred[:, lag:]).sum(1).mean() for lag in range(50)])
    torch.testing.assert_close(autocorrelation(values), covariance / covariance[0])


def test_spread_is_that_of_the_chains_means() -> None:
    assert spread(torch.tensor([[0.0, 2.0], [3.0, 3.0]])) == pytest.approx(math.sqrt(2))
    assert math.isnan(spread(torch.tensor([[0.0, 2.0]])))
