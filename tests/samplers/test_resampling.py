"""The law of algorithm 1 by enumeration: every pool of n draws, every choice from it."""

import pytest
import torch

from energylm.config.sampling import Truncation
from energylm.errors import ConfigError
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.continuations import sample_continuations
from energylm.samplers.resampling import importance_log_weights, resample
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_same_distribution,
    enumerate_expectation,
    enumerate_paths,
    exact_joint,
    exact_language_model,
    exact_proposal,
)

MODEL = TabularLanguageModel.random(3, 2, seed=1)
ENERGY = TabularEnergy.random(3, 2, seed=2, scale=1.5)
BASE = exact_language_model(MODEL, max_new_tokens=2)
ENERGIES = ENERGY.energies(BASE.tokens, BASE.lengths)


def kept_distribution(log_weight_N, **options):
    """{kept index: probability} by walking every path of the real function."""
    outcome = {}
    for probability, kept in enumerate_paths(
        lambda choices: tuple(resample(log_weight_N[None], choices, **options)[0].tolist())
    ):
        outcome[kept] = outcome.get(kept, 0.0) + probability
    return outcome


def test_one_draw_is_kept_in_proportion_to_its_weight():
    """Weights 1, 2, 5: one eighth, one quarter, five eighths."""
    kept = kept_distribution(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log())
    assert kept == pytest.approx({(0,): 1 / 8, (1,): 1 / 4, (2,): 5 / 8})


def test_two_without_replacement_by_hand():
    """Weights 1, 2, 5: first i with w_i/8, then j with w_j/(8 − w_i). The flipped sign (weights 1/w) would not do."""
    kept = kept_distribution(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log(), draws=2)
    weight = [1, 2, 5]
    expected = {(i, j): weight[i] / 8 * weight[j] / (8 - weight[i]) for i in range(3) for j in range(3) if i != j}
    assert kept == pytest.approx(expected)


def resampled_law(n, log_weight):
    """(9,) the law of the kept draw over all pools of n, and its choice, exactly."""

    def kept(pools):
        share = log_weight[pools].softmax(1)
        return torch.zeros(len(pools), len(log_weight), dtype=torch.float64).scatter_add(1, pools, share)

    return enumerate_expectation(BASE.probabilities, kept, n=n)


def test_the_law_tends_to_the_joint_model():
    joint = exact_joint(MODEL, ENERGY, max_new_tokens=2).probabilities
    distance = [float((resampled_law(n, -ENERGIES) - joint).abs().sum()) for n in (1, 3, 6)]
    assert distance[2] < distance[1] < distance[0]
    wrong = float((resampled_law(6, ENERGIES) - joint).abs().sum())  # the energy's sign flipped
    assert wrong > distance[0]


def uneven(history):
    """What top-2 cuts away depends on the first token: a third after 0, a hundredth after 1."""
    return {(0,): [0.34, 0.33, 0.33], (1,): [0.9, 0.09, 0.01]}.get(history, [0.5, 0.4, 0.1])


@pytest.mark.parametrize("weights", ["paper", "corrected"])
def test_the_limit_under_truncation_is_the_target_each_kind_names(weights):
    """Top-2 of 3 tokens, 2,000 pools of 200: the kept draws against the named target, false alarm 1e-4."""
    model = TabularLanguageModel.from_function(uneven, vocabulary_size=3, length=2)
    base = exact_language_model(model, max_new_tokens=2)
    truncation, pools, n = Truncation(top_k=2), 2000, 200
    proposal = exact_proposal(base, truncation)
    supported = proposal.probabilities > 0
    targets = {
        name: (density.log_prob - ENERGIES).masked_fill(~supported, float("-inf")).softmax(0)
        for name, density in {"paper": proposal, "corrected": base}.items()
    }
    drawn = sample_continuations(model.decoder(), [[]] * pools, n=n, max_new_tokens=2, truncation=truncation, seed=5)
    rows = base.index(drawn.tokens.flatten(0, 1)).view(pools, n)
    log_weight = importance_log_weights(ENERGIES[rows], drawn.log_prob, drawn.proposal_log_prob, weights=weights)
    kept = resample(log_weight, RowChoices(row_keys(6, torch.arange(pools), torch.zeros(pools))))
    counts = torch.bincount(rows.gather(1, kept)[:, 0], minlength=9)
    assert_same_distribution(counts, targets.pop(weights))
    (other,) = targets.values()
    with pytest.raises(AssertionError, match="chi-square"):
        assert_same_distribution(counts, other)


def test_more_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="cannot keep 3 different draws of 2"):
        kept_distribution(torch.zeros(2), draws=3)
