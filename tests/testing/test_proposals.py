"""Truncation by hand, against the production route, and as a distribution over sequences."""

import math

import pytest
import torch
from torch.testing import assert_close

from energylm.config.sampling import Truncation
from energylm.numerics.truncation import candidates
from energylm.samplers.continuations import sample_continuations
from energylm.testing import (
    TabularLanguageModel,
    assert_same_distribution,
    exact_language_model,
    exact_proposal,
    truncated_probabilities,
)

P = [0.5, 0.1, 0.3, 0.1]


@pytest.mark.parametrize(
    ("truncation", "expected"),
    [
        (Truncation(), P),
        (Truncation(top_k=2), [5 / 8, 0, 3 / 8, 0]),
        (Truncation(top_k=3), [5 / 9, 1 / 9, 3 / 9, 0]),  # of two equals the smaller id stays
        (Truncation(top_p=0.5), [1, 0, 0, 0]),  # 0.5 is reached by the first alone
        (Truncation(top_p=0.51), [5 / 8, 0, 3 / 8, 0]),
        (Truncation(top_k=2, top_p=0.6), [1, 0, 0, 0]),  # after top-k the first holds 5/8 ≥ 0.6
        (Truncation(temperature=0.5), [25 / 36, 1 / 36, 9 / 36, 1 / 36]),
        (Truncation(temperature=0.5, top_p=0.9), [25 / 34, 0, 9 / 34, 0]),  # 25/36 + 9/36 = 0.944 ≥ 0.9
        (Truncation(top_k=99), P),
    ],
)
def test_truncation_by_hand(truncation, expected):
    assert truncated_probabilities(P, truncation) == pytest.approx(expected)


TRUNCATIONS = [
    Truncation(top_k=3),
    Truncation(top_p=0.7),
    Truncation(temperature=0.6),
    Truncation(temperature=1.7, top_k=5, top_p=0.8),
]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_brute_force_and_production_agree(truncation):
    probs_RV = torch.from_numpy(TabularLanguageModel.random(7, 3, seed=0).log_probs_HV.exp().numpy())
    logits_RK, ids_RK = candidates(probs_RV.log(), truncation)
    production_RV = torch.zeros_like(probs_RV)
    ids_RK = torch.arange(7).expand_as(logits_RK) if ids_RK is None else ids_RK
    production_RV.scatter_(1, ids_RK, logits_RK.softmax(-1))
    brute_RV = torch.tensor([truncated_probabilities(row, truncation) for row in probs_RV.tolist()])
    assert_close(production_RV.float(), brute_RV)


@pytest.mark.parametrize("eos", [None, 1])
def test_proposal_over_sequences_is_a_product_of_truncated_conditionals(eos):
    model = TabularLanguageModel.random(4, 4, seed=1, eos_token_id=eos)
    exact = exact_language_model(model, [2], max_new_tokens=3)
    truncation = Truncation(top_k=2, temperature=0.8)
    proposal = exact_proposal(exact, truncation)
    assert math.isclose(proposal.probabilities.sum(), 1.0, abs_tol=1e-12)
    for tokens, length, probability in zip(
        proposal.tokens.tolist(), proposal.lengths, proposal.probabilities, strict=True
    ):
        product = 1.0
        for t in range(length):
            conditional = model.next_log_probs([2, *tokens[:t]]).exp().tolist()
            product *= truncated_probabilities(conditional, truncation)[tokens[t]]
        assert math.isclose(product, probability, abs_tol=1e-12)
    # the mistake: truncating whole sequences' probabilities instead of each step's
    whole = torch.where(proposal.log_prob.isfinite(), exact.log_prob, -torch.inf).softmax(0)
    assert (whole - proposal.probabilities).abs().max() > 0.01


def test_no_truncation_changes_nothing():
    exact = exact_language_model(TabularLanguageModel.random(3, 3, seed=2, eos_token_id=0), max_new_tokens=3)
    assert_close(exact_proposal(exact, Truncation()).log_prob, exact.log_prob)


@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize("truncation", [Truncation(), *TRUNCATIONS[:2]], ids=str)
def test_the_engine_samples_a_table_as_it_should(truncation, eos):
    """The kit meets production: 20,000 continuations of two contexts, false alarm 1e-4."""
    model = TabularLanguageModel.random(4, 4, seed=6, eos_token_id=eos)
    contexts = [[], [1]]
    drawn = sample_continuations(
        model.decoder(), contexts, n=20_000, max_new_tokens=3, truncation=truncation, eos_token_id=eos, seed=0
    )
    for row, context in enumerate(contexts):
        exact = exact_language_model(model, context, max_new_tokens=3)
        proposal = exact_proposal(exact, truncation)
        place = exact.index(drawn.tokens[row], drawn.lengths[row])
        assert_same_distribution(proposal.counts(drawn.tokens[row], drawn.lengths[row]), proposal.probabilities)
        assert_close(drawn.log_prob[row], exact.log_prob[place])
        assert_close(drawn.proposal_log_prob[row], proposal.log_prob[place])
        if not truncation.is_identity:  # the mistake: comparing with the untruncated model
            with pytest.raises(AssertionError, match="chi-square"):
                assert_same_distribution(torch.bincount(place, minlength=len(exact.tokens)), exact.probabilities)
