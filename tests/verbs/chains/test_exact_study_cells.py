"""Exact measures of an energy of short sequences against loops, and how cells become numbers by name."""

import math

import pytest
import torch

from energylm.data.small_languages import Sequences
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods
from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig
from energylm.testing import enumerate_sequences
from energylm.verbs.chains.exact_study_cells import measure, study_result


@pytest.fixture(scope="module")
def network() -> BiLSTMContext:
    torch.manual_seed(0)
    return BiLSTMContext(BiLSTMContextConfig(vocab_size=3, hidden_size=4, head_size=6)).double().eval()


def test_measures_are_expectations_over_the_language(network) -> None:
    universe_ST, length = enumerate_sequences(3, 4), 4
    lengths_S = torch.full((81,), length)
    weights_S = torch.randn(81, generator=torch.Generator().manual_seed(1)).double().softmax(0)
    with torch.no_grad():
        log_joint_S = (-MaskedLMEnergy(network, kind="raw").energies(universe_ST, lengths_S)).log_softmax(0)
        free_S = token_pseudo_log_likelihoods(network, universe_ST, lengths_S).sum(1)
    grid = log_joint_S.view(3, 3, 3, 3)
    pseudo_S = sum(grid.log_softmax(axis).flatten() for axis in range(4))
    measured = measure(network, Sequences.of_one_length(universe_ST), weights_S, log_length_probs={4: 0.0})
    assert measured.nll == pytest.approx(-float(weights_S @ log_joint_S), abs=1e-9)
    assert measured.pseudo_nll == pytest.approx(-float(weights_S @ pseudo_S), abs=1e-9)
    assert measured.masked_nll == pytest.approx(-float(weights_S @ free_S), abs=1e-9)
    entropy = -float(weights_S @ weights_S.log())
    assert measured.nll > entropy, "no model beats the truth"


def test_lengths_have_probabilities_of_their_own(network) -> None:
    """With all sequences of lengths 1 and 2, P(length) · P(sequence | length) sums to one."""
    ones, twos = enumerate_sequences(3, 1), enumerate_sequences(3, 2)
    padded = torch.cat([torch.nn.functional.pad(ones, (0, 1)), twos])
    lengths = torch.tensor([1] * 3 + [2] * 9)
    probs = {1: math.log(0.25), 2: math.log(0.75)}
    total = 0.0
    for row in range(12):
        sequence = Sequences(padded[row : row + 1], lengths[row : row + 1])
        total += math.exp(-measure(network, sequence, torch.ones(1).double(), log_length_probs=probs).nll)
    assert total == pytest.approx(1, abs=1e-9)


def test_cells_become_numbers_by_name() -> None:
    def cell(nll: float, size: int) -> dict:
        return {"nll": nll, "pseudo_nll": 1.0, "masked_nll": 2.0, "true_nll": 5.0, "train_sequences": size}

    table = {"hmm_low": {"n10": {"masked": [cell(6, 10), cell(8, 10)]}, "n20": {"masked": [cell(5.5, 20)] * 2}}}
    result = study_result(table)
    numbers = result.languages["hmm_low"]
    assert (
        result.languages["hmm_low"]["n10"]["masked"]["nll"] == 7
        and result.languages["hmm_low"]["n10"]["masked"]["gap"] == 2
    )
    assert numbers["n10"]["masked"]["nll_error"] == pytest.approx(1.0)  # √2 / √2
    assert numbers["masked"]["nll"] == [7, 5.5] and numbers["sequences"] == [
        10,
        20,
    ]
    assert [row["−LL"] for row in result.rows] == [7, 5.5] and result.rows[1]["sequences"] == "n20"
