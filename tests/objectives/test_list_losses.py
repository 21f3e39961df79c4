"""List losses by enumeration of the list: values and gradients by hand, what is not there, what teaches nothing."""

import math

import pytest
import torch

from energylm.objectives.list_losses import (
    LIST_LOSSES,
    expected_error,
    list_log_posterior,
    list_most_offending,
    list_nce,
)

BASE = torch.tensor([[-1.0, -1.5, -4.0, -2.0], [-0.5, -0.7, -math.inf, -math.inf]], dtype=torch.float64)
ENERGY = torch.tensor([[0.3, -0.8, 0.1, 2.0], [1.0, 0.2, 5.0, -7.0]], dtype=torch.float64)
COST = torch.tensor([[2.0, 1.0, 1.0, 3.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def posterior(base, energy):
    """By loops over the members that are there."""
    weights = [math.exp(f - e) if math.isfinite(f) else 0.0 for f, e in zip(base, energy, strict=True)]
    return [weight / sum(weights) for weight in weights]


def by_enumeration(name, base, energy, cost, margin=1.0):
    base, energy, cost = base.tolist(), energy.tolist(), cost.tolist()
    members = [index for index, f in enumerate(base) if math.isfinite(f)]
    least = min(cost[index] for index in members)
    best = [index for index in members if cost[index] == least]
    p = posterior(base, energy)
    if name == "nce":
        return -math.log(sum(p[index] for index in best))
    if name == "expected-error":
        return sum(p[index] * (cost[index] - least) for index in members)
    score = {index: base[index] - energy[index] for index in members}
    rival = max(score[index] for index in members if index not in best)
    return max(0.0, margin + rival - max(score[index] for index in best))


@pytest.mark.parametrize("name", LIST_LOSSES)
def test_values_are_those_of_the_enumerated_list(name):
    losses = LIST_LOSSES[name](BASE, ENERGY, COST)
    expected = [by_enumeration(name, *rows) for rows in zip(BASE, ENERGY, COST, strict=True)]
    assert losses.tolist() == pytest.approx(expected, abs=1e-12)
    flipped = [by_enumeration(name, base, -energy, cost) for base, energy, cost in zip(BASE, ENERGY, COST, strict=True)]
    assert losses.tolist() != pytest.approx(flipped, abs=1e-3)  # the wrong sign of E


@pytest.mark.parametrize("name", LIST_LOSSES)
def test_gradients_by_finite_differences(name):
    """Each energy moved by itself, every term of the list taken anew; members that are not there have gradient 0."""
    energy = ENERGY.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(LIST_LOSSES[name](BASE, energy, COST).sum(), energy)
    step = 1e-6
    for row in range(2):
        for member in range(4):
            moved = []
            for sign in (1, -1):
                other = ENERGY[row].clone()
                other[member] += sign * step
                moved.append(by_enumeration(name, BASE[row], other, COST[row]))
            assert float(gradient[row, member]) == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-7)
    assert gradient[1, 2:].tolist() == [0.0, 0.0]


def test_the_gradient_of_expected_error_in_closed_form():
    """∂L/∂E_h = P_h (L − c_h): with the mean cost left out (REINFORCE without its baseline) it would be −P_h c_h."""
    energy = ENERGY.clone().requires_grad_()
    loss = expected_error(BASE, energy, COST)
    (gradient,) = torch.autograd.grad(loss.sum(), energy)
    p = list_log_posterior(BASE, ENERGY).exp()
    excess = COST - torch.tensor([[1.0], [0.0]])
    closed = p * (loss.detach()[:, None] - excess)
    assert torch.allclose(gradient, closed.where(BASE.isfinite(), 0.0), atol=1e-12)
    assert not torch.allclose(gradient, (-p * excess).where(BASE.isfinite(), 0.0), atol=1e-3)
    assert gradient.sum(-1).tolist() == pytest.approx([0, 0], abs=1e-12)  # only differences within a list count


def test_nce_recovers_a_posterior():
    """Lists of two whose first is right with probability 0.8 and f says 0.5: at the minimum −ΔE = log 4."""
    base = torch.zeros(10, 2, dtype=torch.float64)
    cost = torch.tensor([[0.0, 1.0]] * 8 + [[1.0, 0.0]] * 2, dtype=torch.float64)
    difference = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [difference], max_iter=50, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        energy = torch.stack([torch.zeros_like(difference), difference]).expand(10, 2)
        loss = list_nce(base, energy, cost).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert difference.item() == pytest.approx(math.log(4), abs=1e-6)


@pytest.mark.parametrize("name", LIST_LOSSES)
def test_a_list_of_equals_teaches_nothing(name):
    energy = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = LIST_LOSSES[name](torch.zeros(1, 3, dtype=torch.float64), energy, torch.full((1, 3), 2.0).double())
    (gradient,) = torch.autograd.grad(loss.sum(), energy)
    assert float(loss.detach()) == 0.0 and gradient.abs().max() == 0.0


def test_the_margin_is_reached_and_no_more():
    base, cost = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    assert float(list_most_offending(base, torch.tensor([[0.0, 0.5]]), cost, margin=0.5)) == 0.0
    assert float(list_most_offending(base, torch.tensor([[0.0, 0.25]]), cost, margin=0.5)) == pytest.approx(0.25)
