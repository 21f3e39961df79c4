"""The projection after probing is the minimum of its convex problem, by its gradient; and it points the right way."""

import numpy as np
import torch
from torch import nn

from energylm.training.detector_task import STRENGTH, fit_projection


class Pooled(nn.Module):
    """The states are the tokens themselves, scaled unevenly: standardising matters."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, tokens_BT, lengths_B):
        return self.head(tokens_BT.float() * torch.tensor([1.0, 50.0, 0.02]))[:, 0]


def batches(seed=0):
    """Machine rows (the odd ones) have larger first numbers."""
    numbers = np.random.default_rng(seed)
    for _ in range(5):
        tokens = numbers.normal(10, 3, (20, 3))
        tokens[1::2, 0] += 4
        yield torch.from_numpy(tokens), torch.full((20,), 3)


def penalised_loss(states_ND, labels_N, weight_D, bias):
    """As in the header, on standardised states."""
    energy_N = states_ND @ weight_D + bias
    losses_N = torch.nn.functional.softplus(torch.where(labels_N, -energy_N, energy_N))
    return losses_N.sum() + weight_D.square().sum() / (2 * STRENGTH)


def test_it_is_the_minimum():
    model = Pooled()
    fit_projection(model, batches())
    states = torch.cat([tokens * torch.tensor([1.0, 50.0, 0.02]) for tokens, _ in batches()])
    mean, spread = states.mean(0), states.std(0, unbiased=False) + 1e-6
    weight = (model.head.weight[0].detach().double() * spread).requires_grad_()
    bias = (
        model.head.bias[0].detach().double() + (model.head.weight[0].detach().double() * mean).sum()
    ).requires_grad_()
    labels = torch.arange(100) % 2 == 1
    loss = penalised_loss((states - mean) / spread, labels, weight, bias)
    gradients = torch.autograd.grad(loss, [weight, bias])
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-2
    flipped = torch.autograd.grad(penalised_loss((states - mean) / spread, ~labels, weight, bias), [weight, bias])
    assert float(flipped[0].abs().max()) > 1  # the mistake: classes exchanged


def test_machine_blocks_get_the_higher_energy():
    model = Pooled()
    fit_projection(model, batches())
    tokens, lengths = next(batches(seed=1))
    energy = model(tokens, lengths)
    assert energy[1::2].mean() > 0 > energy[::2].mean()
    assert model.head.weight.requires_grad
