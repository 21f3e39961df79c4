"""Candidates of truncated proposals against plain brute force (`testing.proposals` shares no code with them)."""

import pytest
import torch

from energylm.config.sampling import Truncation
from energylm.numerics.truncation import candidates, top_k
from energylm.testing.proposals import truncated_probabilities


def proposal(logits_RV, truncation):
    """(R, V) probabilities of the candidates, put back at their ids."""
    values, ids = candidates(logits_RV, truncation)
    probability = values.softmax(-1)
    return probability if ids is None else torch.zeros_like(logits_RV).scatter(1, ids, probability)


def random_logits(rows, vocabulary, spread=2.0):
    return (
        torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary), dtype=torch.float64) * spread
    )


@pytest.mark.parametrize(
    "truncation",
    [
        Truncation(),
        Truncation(temperature=0.5),
        Truncation(top_k=1),
        Truncation(top_k=10),
        Truncation(top_k=10**6),
        Truncation(top_p=0.3),
        Truncation(top_p=0.999),
        Truncation(top_k=20, top_p=0.8, temperature=1.7),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", [7, 64, 700, 3000])
def test_candidates_equal_brute_force(truncation, vocabulary):
    logits = random_logits(3, vocabulary)
    expected = [truncated_probabilities(row.softmax(-1).tolist(), truncation) for row in logits]
    torch.testing.assert_close(
        proposal(logits, truncation), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_a_flat_nucleus_larger_than_the_first_guess_is_found():
    """Two thousand equal tokens: the nucleus of 0.90025 holds 1,801, far more than the candidates tried first."""
    kept = proposal(torch.zeros(1, 2000, dtype=torch.float64), Truncation(top_p=0.90025)) > 0
    assert kept.sum() == 1801


def test_top_p_before_top_k_is_another_proposal():
    """Deliberate mistake: the nucleus taken of the whole distribution, then cut to k, keeps more tokens."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    right = proposal(logits, Truncation(top_k=2, top_p=0.5)) > 0
    wrong = proposal(candidates(logits, Truncation(top_p=0.5))[0], Truncation(top_k=2)) > 0
    assert right.tolist() == [[True, False, False, False]]
    assert wrong.tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("k", [1, 3, 10])
def test_top_k_equals_torch(k):
    logits = random_logits(5, 5000).float()
    values, ids = top_k(logits, k)
    expected = logits.topk(k)
    assert values.equal(expected.values) and ids.equal(expected.indices)
