"""The enumerated NCE loss has its minimum where −E = log P_data − log P_LM.

E[L] = Σ_x P_data(x) softplus(E(x)) + Σ_x P_LM(x) softplus(−E(x))
∂/∂E(x) = P_data(x) σ(E(x)) − P_LM(x) σ(−E(x)) = 0   ⇔   σ(E)/σ(−E) = exp(E(x)) = P_LM(x) / P_data(x)
"""

import math

import pytest
import torch

from energylm.objectives.residual_energy import residual_nce
from energylm.testing import TabularEnergy, TabularLanguageModel, exact_language_model

VOCABULARY, LENGTH = 4, 3


def minimised_energy(loss):
    """Minus log-ratio by exact expectations: every sequence, weighted by its probability."""
    data = exact_language_model(TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1), max_new_tokens=LENGTH)
    base = exact_language_model(TabularLanguageModel.random(VOCABULARY, LENGTH, seed=2), max_new_tokens=LENGTH)
    energy = TabularEnergy.random(VOCABULARY, LENGTH, seed=3)
    energy.table.requires_grad_()
    optimizer = torch.optim.LBFGS([energy.table], max_iter=3000, tolerance_grad=1e-14, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        energies = energy.energies(data.tokens, data.lengths)
        value = loss(energies, data.probabilities, base.probabilities)
        value.backward()
        return value

    for _ in range(5):
        optimizer.step(closure)
    gap = -energy.energies(data.tokens, data.lengths) - (data.log_prob - base.log_prob)
    return gap.detach()[data.probabilities > 1e-4]


def enumerated_loss(energies, data_probability, base_probability, *, k=1):
    """One real and k equal negatives for each pair of terms; real and noise parts separate because L is a sum."""
    nothing = torch.zeros_like(energies)
    real_part = residual_nce(energies, nothing[:, None]) - math.log(2)
    noise_part = residual_nce(nothing, energies[:, None].expand(-1, k)) - math.log(2)
    return (data_probability * real_part + base_probability * noise_part).sum()


def test_minimum_is_the_log_ratio():
    assert minimised_energy(enumerated_loss).abs().max() < 0.05


def test_many_negatives_do_not_shift_the_minimum():
    gap = minimised_energy(lambda *arguments: enumerated_loss(*arguments, k=7))
    assert gap.abs().max() < 0.05


def test_flipped_sign_is_caught():
    gap = minimised_energy(lambda energies, data, base: enumerated_loss(-energies, data, base))
    assert gap.abs().max() > 1


def test_a_sum_over_negatives_shifts_by_log_k():
    def summed(energies, data_probability, base_probability):
        return enumerated_loss(energies, data_probability, 7 * base_probability)

    assert minimised_energy(summed).mean() == pytest.approx(-math.log(7), abs=0.05)


def test_by_hand():
    """E+ = 0 gives log 2; E− = (0, log 3): σ(E−) = ½ and ¾, so the mean of −log σ is (log 2 + log 4/3) / 2."""
    loss = residual_nce(torch.tensor([0.0]), torch.tensor([[0.0, math.log(3)]]))
    assert loss.item() == pytest.approx(math.log(2) + (math.log(2) + math.log(4 / 3)) / 2, abs=1e-6)
