"""Cross-entropy against the lowest of K negatives: by hand, against brute force, gradients through one negative only.

With i = argmin_k E_k:   ∂L/∂E+ = σ(E+),   ∂L/∂E_i = −σ(−E_i),   ∂L/∂E_k = 0 for k ≠ i
"""

import math

import pytest
import torch
from torch.testing import assert_close

from energylm.objectives.residual_energy import most_offending, offending_energy, offending_index, residual_nce


def energies(k=6, size=40, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=numbers, dtype=torch.float64) for shape in ((size,), (size, k)))


def brute_force(real, noise):
    """Python's own loops: −log σ(−E+) − log σ(E−) of the negative that no other undercuts."""
    losses = []
    for mine, others in zip(real.tolist(), noise.tolist(), strict=True):
        (worst,) = {other for other in others if all(other <= one for one in others)}
        losses.append(-math.log(1 / (1 + math.exp(mine))) - math.log(1 / (1 + math.exp(-worst))))
    return torch.tensor(losses, dtype=torch.float64)


def test_by_hand():
    """E+ = 0 costs log 2; of (log 3, 0, 5) the lowest is 0, which costs log 2 too."""
    loss = most_offending(torch.tensor([0.0]), torch.tensor([[math.log(3), 0.0, 5.0]]))
    assert loss.item() == pytest.approx(2 * math.log(2), abs=1e-6)


def test_index_and_loss_equal_brute_force():
    real, noise = energies()
    expected = [min(range(6), key=row.__getitem__) for row in noise.tolist()]
    assert offending_index(noise).tolist() == expected
    assert_close(offending_energy(noise), torch.tensor([row[i] for row, i in zip(noise, expected, strict=True)]))
    assert_close(most_offending(real, noise), brute_force(real, noise))
    # Teeth: the highest negative, and the mean over negatives, are other losses.
    assert not torch.allclose(residual_nce(real, noise.amax(-1, keepdim=True)), brute_force(real, noise))
    assert not torch.allclose(residual_nce(real, noise), brute_force(real, noise))


def test_one_negative_is_the_plain_cross_entropy():
    real, noise = energies(k=1)
    assert_close(most_offending(real, noise), residual_nce(real, noise))


def test_gradients_by_hand_and_by_finite_differences():
    real, noise = (values.requires_grad_() for values in energies(k=4, size=5))
    assert torch.autograd.gradcheck(most_offending, (real, noise))
    most_offending(real, noise).sum().backward()
    assert_close(real.grad, real.detach().sigmoid())
    expected = torch.zeros_like(noise)
    rows, index = torch.arange(5), offending_index(noise)
    expected[rows, index] = -(-noise.detach()[rows, index]).sigmoid()
    assert_close(noise.grad, expected)
    assert (noise.grad != 0).sum() == 5  # one negative of each context


def test_only_one_of_two_equal_negatives_is_pushed():
    """A tie: torch's `amin` would share the gradient between them."""
    noise = torch.tensor([[0.5, 0.5, 2.0]], requires_grad=True)
    most_offending(torch.zeros(1), noise).sum().backward()
    assert (noise.grad != 0).tolist() == [[True, False, False]]
    shared = torch.tensor([[0.5, 0.5, 2.0]], requires_grad=True)
    shared.amin(-1).sum().backward()
    assert (shared.grad != 0).sum() == 2  # teeth


def test_the_sign_printed_in_the_paper_is_unbounded_below():
    """Eq. 1 as printed, … + log σ(−E(x−)), falls without end as E(x−) grows; the cross-entropy tends to 0."""
    high = torch.tensor([[10.0], [100.0]], dtype=torch.float64)
    printed = torch.nn.functional.logsigmoid(-high[:, 0])
    assert printed[1] < printed[0] - 80
    loss = most_offending(torch.full((2,), -100.0, dtype=torch.float64), high)
    assert (loss >= 0).all() and loss[1] < 1e-6
