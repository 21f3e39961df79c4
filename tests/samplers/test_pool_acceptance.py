"""Rejection, quasi-rejection and independence chains against exact laws, on a language of 4 texts.

Their decisions are enumerated: two or three draws of the pool, each accepted or not, make every path. The first
accepted draw, given that there is one, must have the target's law exactly; for quasi-rejection that of
p_β ∝ q · min(w, β).
"""

import pytest
import torch

from energylm.errors import ConfigError
from energylm.estimators.sampler_certificate import (
    independence_distance,
    quasi_rejection_bound,
    quasi_rejection_distance,
)
from energylm.samplers.resampling import (
    accept_draws,
    check_bound,
    first_accepted,
    independence_chains,
    independence_step,
)
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_stationary,
    enumerate_paths,
    exact_joint,
    exact_language_model,
    exact_transition_matrix,
    index_of,
    is_reversible,
)

LM = TabularLanguageModel.random(2, 2, seed=1)
ENERGY = TabularEnergy.random(2, 2, seed=2, scale=1.5)
BASE = exact_language_model(LM, max_new_tokens=2)
JOINT = exact_joint(LM, ENERGY, max_new_tokens=2)
LOG_WEIGHT = -ENERGY.energies(BASE.tokens, BASE.lengths)
TIGHT = LOG_WEIGHT.max()  # the least bound
LOOSE = LOG_WEIGHT.sort().values[1]  # two texts weigh more: quasi-rejection
CUT = (BASE.log_prob + torch.minimum(LOG_WEIGHT, LOOSE)).softmax(0)


def law_of_first(log_weight, log_bound, *, n=2):
    """(texts,) the law of the first accepted of n draws, given that one is accepted."""
    law = torch.zeros(len(BASE.tokens), dtype=torch.float64)
    for probability, text in enumerate_paths(lambda choices: _first(choices, log_weight, log_bound, n)):
        if text is not None:
            law[text] += probability
    return law / law.sum()


def _first(choices, log_weight, log_bound, n):
    drawn = torch.cat([choices.categorical(BASE.log_prob[None]) for _ in range(n)])
    accepted = accept_draws(log_weight[drawn][None], choices, log_bound_B=log_bound[None])[0]
    return int(drawn[accepted][0]) if accepted.any() else None


def test_the_first_accepted_draw_has_the_target_law_exactly():
    torch.testing.assert_close(law_of_first(LOG_WEIGHT, TIGHT), JOINT.probabilities, atol=1e-10, rtol=0)
    torch.testing.assert_close(law_of_first(LOG_WEIGHT, TIGHT + 1), JOINT.probabilities, atol=1e-10, rtol=0)


def test_quasi_rejection_has_the_law_of_cut_weights():
    torch.testing.assert_close(law_of_first(LOG_WEIGHT, LOOSE), CUT, atol=1e-10, rtol=0)
    assert (CUT - JOINT.probabilities).abs().max() > 0.01  # teeth: it is another than the target


def test_a_bound_from_the_very_draws_is_caught():
    """Deliberate mistake: the largest weight of the pool as its bound. The best of the pool is then always accepted."""

    def first(choices):
        drawn = torch.cat([choices.categorical(BASE.log_prob[None]) for _ in range(2)])
        weights = LOG_WEIGHT[drawn][None]
        accepted = accept_draws(weights, choices, log_bound_B=weights.amax(1))[0]
        return int(drawn[accepted][0])

    law = torch.zeros(len(BASE.tokens), dtype=torch.float64)
    for probability, text in enumerate_paths(first):
        law[text] += probability
    assert (law - JOINT.probabilities).abs().max() > 0.01


def test_no_bound_is_taken_for_one():
    check_bound(LOG_WEIGHT[None], TIGHT[None])
    with pytest.raises(ConfigError, match="above the bound, which is therefore none"):
        check_bound(LOG_WEIGHT[None], LOOSE[None])


def test_first_accepted_are_kept_in_order_and_too_few_are_told():
    accepted = torch.tensor([[False, True, False, True, True], [True, True, False, False, False]])
    assert first_accepted(accepted, draws=2) == [[1, 3], [0, 1]]
    with pytest.raises(ConfigError, match="of 5 candidates 2 were accepted, but 3 shall be kept"):
        first_accepted(accepted, draws=3)


def test_the_distance_bounds_the_exact_one_and_vanishes_without_a_cut():
    """From the exact pool (every text with its probability as a weight) the estimate is the bound itself: it is not
    below the true distance. Teeth: of cut weights that are forgotten to be cut the distance is 0."""
    pool = torch.arange(4).repeat_interleave((1e6 * BASE.probabilities).round().long())
    exact = float((CUT - JOINT.probabilities).abs().sum() / 2)
    bound = float(quasi_rejection_distance(LOG_WEIGHT[pool][None], LOOSE[None]))
    cut_mass = (BASE.log_prob + LOG_WEIGHT.clamp(max=LOOSE)).logsumexp(0)
    by_hand = 1 - (cut_mass - JOINT.log_partition).exp()
    assert bound == pytest.approx(float(by_hand), abs=1e-4)
    assert exact <= bound + 1e-6 and exact > 0.01
    assert float(quasi_rejection_distance(LOG_WEIGHT[pool][None], TIGHT[None])) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("distance", [0.0, 0.01, 0.1, 0.5, 0.9])
def test_the_chosen_bound_reaches_the_distance_and_no_more(distance):
    weights = torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    weights[3] = 1.0  # all equal
    chosen = quasi_rejection_bound(weights, distance=distance)
    torch.testing.assert_close(
        quasi_rejection_distance(weights, chosen), torch.full((4,), distance, dtype=torch.float64), atol=1e-10, rtol=0
    )


def chain(tokens, choices, flip=1.0):
    proposed = choices.categorical(BASE.log_prob.expand(len(tokens), -1))
    now = index_of(tokens, BASE.tokens)
    accepted = independence_step(flip * LOG_WEIGHT[now], flip * LOG_WEIGHT[proposed], choices)
    return BASE.tokens[torch.where(accepted, proposed, now)]


def test_an_independence_move_keeps_the_target():
    transition = exact_transition_matrix(BASE.tokens, chain)
    assert_stationary(JOINT.probabilities, transition)
    assert is_reversible(JOINT.probabilities, transition)
    wrong = exact_transition_matrix(BASE.tokens, lambda tokens, choices: chain(tokens, choices, flip=-1.0))
    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(JOINT.probabilities, wrong)


def test_the_chain_over_a_pool_is_that_move_and_its_distance_bounds_the_exact_one():
    transition = exact_transition_matrix(BASE.tokens, chain)
    law = torch.zeros(4, dtype=torch.float64)

    def last(choices):
        drawn = torch.cat([choices.categorical(BASE.log_prob[None]) for _ in range(3)])
        return int(drawn[independence_chains(LOG_WEIGHT[drawn][None], choices)[0, -1]])

    for probability, text in enumerate_paths(last):
        law[text] += probability
    torch.testing.assert_close(law, BASE.probabilities @ transition @ transition, atol=1e-10, rtol=0)
    pool = torch.arange(4).repeat_interleave((1e6 * BASE.probabilities).round().long())
    bound = float(independence_distance(LOG_WEIGHT[pool][None], draws=3))
    assert (law - JOINT.probabilities).abs().sum() / 2 <= bound + 1e-6
    assert bound < float(independence_distance(LOG_WEIGHT[pool][None], draws=2)) < 1.0


def test_a_chain_leaves_what_is_forbidden():
    weights = torch.tensor([[float("-inf"), float("-inf"), 0.0, float("-inf")]])
    paths = enumerate_paths(lambda choices: independence_chains(weights, choices)[0, -1].item())
    assert {text for _, text in paths} == {2}
