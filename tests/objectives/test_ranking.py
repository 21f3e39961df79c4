"""The ranking loss: by hand, against every pair, its gradients, what its margin means; precision at 1 by counting."""

import pytest
import torch
from torch.testing import assert_close

from energylm.objectives.residual_energy import PAPER_MARGIN, precision_at_1, ranking

REAL = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
NOISE = torch.tensor([[3.0, 0.5], [0.9, 0.2], [5.0, 2.0]], dtype=torch.float64)


def test_by_hand():
    """Margin 1: −1 against 0.5 is beaten by 1.5, so 0; 0.5 against 0.2 costs 1 + 0.3; 2 against 2 costs the margin.
    Margin 0.1 (figure 3): 0, 0.4, 0.1."""
    assert PAPER_MARGIN == 1.0
    assert_close(ranking(REAL, NOISE), torch.tensor([0.0, 1.3, 1.0], dtype=torch.float64))
    assert_close(ranking(REAL, NOISE, margin=0.1), torch.tensor([0.0, 0.4, 0.1], dtype=torch.float64))
    flipped = ranking(-REAL, -NOISE)  # teeth: the sign of the energy
    assert not torch.allclose(flipped, ranking(REAL, NOISE))


def test_it_is_the_worst_hinge_of_all_pairs():
    numbers = torch.Generator().manual_seed(0)
    real, noise = (torch.randn(*shape, generator=numbers, dtype=torch.float64) for shape in ((50,), (50, 4)))
    hinges = torch.stack([(0.3 + real - noise[:, k]).clamp(min=0) for k in range(4)], dim=1)
    assert_close(ranking(real, noise, margin=0.3), hinges.amax(1))
    assert not torch.allclose(hinges.mean(1), hinges.amax(1))  # teeth: their mean is another loss


def test_only_differences_within_a_context_count():
    """Another constant for every context changes nothing; an absolute loss would notice."""
    shift = torch.tensor([10.0, -3.0, 0.25], dtype=torch.float64)
    assert_close(ranking(REAL + shift, NOISE + shift[:, None]), ranking(REAL, NOISE))


def test_gradients_by_hand_and_by_finite_differences():
    """Inside the margin ±1 for the real text and for the lowest negative; outside nothing."""
    real, noise = REAL.clone().requires_grad_(), NOISE.clone().requires_grad_()
    ranking(real, noise).sum().backward()
    assert real.grad.tolist() == [0.0, 1.0, 1.0]
    assert noise.grad.tolist() == [[0.0, 0.0], [0.0, -1.0], [0.0, -1.0]]
    away = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)  # no kink at these points
    assert torch.autograd.gradcheck(ranking, (away, NOISE.clone().requires_grad_()))


def test_precision_at_1_counts_strict_wins():
    """Lowest, not lowest, tied with its negative: 1, 0, 0."""
    found = precision_at_1(REAL, NOISE)
    assert found.tolist() == [1.0, 0.0, 0.0] and found.dtype == REAL.dtype
    assert float(precision_at_1(REAL, NOISE).mean()) == pytest.approx(1 / 3)
    against_the_mean = (REAL < NOISE.mean(-1)).double()
    assert against_the_mean.tolist() != found.tolist()  # teeth


def test_a_margin_of_zero_loss_means_a_win_by_the_margin():
    numbers = torch.Generator().manual_seed(1)
    real, noise = torch.randn(200, generator=numbers), torch.randn(200, 3, generator=numbers)
    satisfied = ranking(real, noise, margin=0.5) == 0
    assert 0 < int(satisfied.sum()) < 200
    assert bool((noise[satisfied] - real[satisfied, None] >= 0.5).all())
    assert bool(precision_at_1(real, noise)[satisfied].all())
