"""Costs by position, soft direct loss, soft hinge, self-normalisation: by hand, in the limit, by finite differences."""

import math

import pytest
import torch
from torch.testing import assert_close

from energylm.errors import ConfigError
from energylm.objectives.cross_entropy import log_z_moments, log_z_spread, squared_log_z_sum
from energylm.objectives.search_losses import soft_direct_loss, soft_hinge, step_cost

FLOAT = torch.float64


def test_hamming_costs_by_hand():
    cost = step_cost("hamming", vocabulary_size=3)
    assert cost(torch.tensor([0, 2])).tolist() == [[0, 1, 1], [1, 1, 0]]


def test_only_a_wrong_o_costs_double():
    """Tags O, B, I; gold B: writing O costs 2, I costs 1. Gold O: O is right, anything else costs 1."""
    cost = step_cost("doubled-outside", vocabulary_size=3, outside_id=0)
    assert cost(torch.tensor([1, 0])).tolist() == [[2, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("name", ["bleu", "F1", "edit-distance"])
def test_a_cost_that_does_not_decompose_is_refused(name):
    with pytest.raises(ConfigError, match=r"no sum over positions.*take one of: hamming"):
        step_cost(name, vocabulary_size=3)


def test_unknown_costs_and_missing_o_are_refused():
    with pytest.raises(ConfigError, match="unknown cost 'haming'"):
        step_cost("haming", vocabulary_size=3)
    with pytest.raises(ConfigError, match="needs a tag 'O'"):
        step_cost("doubled-outside", vocabulary_size=3)


def test_direct_loss_by_hand_and_in_the_limit():
    """Scores 1 and 0 at α = 2: weights σ(2) and 1 − σ(2). Sharp: the cost of the better one."""
    scores, costs = torch.tensor([[1.0, 0.0]], dtype=FLOAT), torch.tensor([[3.0, 1.0]], dtype=FLOAT)
    weight = 1 / (1 + math.exp(-2))
    assert_close(soft_direct_loss(scores, costs, alpha=2.0), torch.tensor([3 * weight + 1 - weight], dtype=FLOAT))
    assert_close(soft_direct_loss(scores, costs, alpha=1e4), torch.tensor([3.0], dtype=FLOAT))
    assert float(soft_direct_loss(-scores, costs, alpha=1e4)) == 1.0  # teeth: the sign of the scores matters


def test_hinge_by_hand_and_in_the_limit():
    scores = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=FLOAT)
    weight = 1 / (1 + math.exp(-2))
    loss = soft_hinge(scores, torch.tensor([1.0, 5.0], dtype=FLOAT), alpha=1.0)
    assert_close(loss, torch.tensor([2 * weight - 1, 0.0], dtype=FLOAT))
    assert_close(
        soft_hinge(scores, torch.tensor([1.0, 5.0], dtype=FLOAT), alpha=1e4), torch.tensor([1.0, 0.0], dtype=FLOAT)
    )


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    scores, costs = (torch.randn(3, 4, dtype=FLOAT, generator=generator).requires_grad_() for _ in range(2))
    gold = torch.randn(3, dtype=FLOAT, generator=generator).sub(3).requires_grad_()  # the hinge is open
    assert torch.autograd.gradcheck(lambda s, c: soft_direct_loss(s, c, alpha=1.3), (scores, costs))
    assert torch.autograd.gradcheck(lambda s, g: soft_hinge(s, g, alpha=1.3), (scores, gold))


def test_self_normalisation_by_hand():
    """Scores log 1, log 3: Z = 4. Scores 0, 0: Z = 2. The third position is padding."""
    scores = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0], [50.0, 50.0]]], dtype=FLOAT)
    mask = torch.tensor([[True, True, False]])
    assert float(squared_log_z_sum(scores, mask)) == pytest.approx(math.log(4) ** 2 + math.log(2) ** 2)
    spread = log_z_spread(log_z_moments(scores[:, :1], mask[:, :1]) + log_z_moments(scores[:, 1:], mask[:, 1:]))
    assert spread.positions == 2 and spread.mean == pytest.approx(1.5 * math.log(2))
    assert spread.variance == pytest.approx((0.5 * math.log(2)) ** 2)
    assert torch.autograd.gradcheck(lambda s: squared_log_z_sum(s, mask), (scores.clone().requires_grad_(),))
