"""Candidates of truncated proposals against plain brute force (`testing.exact` shares no code with them)."""

import pytest
import torch

from energylm.config.sampling import Truncation
from energylm.numerics import truncation
from energylm.numerics.truncation import candidates, top_k
from energylm.testing.exact import truncated_probabilities


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


def tied_logits(rows, vocabulary, *, levels, dtype):
    """Logits with few different values, so that nearly every token has equals."""
    generator = torch.Generator().manual_seed(levels)
    return torch.randint(-levels, 1, (rows, vocabulary), generator=generator).to(dtype) / 2


def in_order(logits_RV, k):
    """The rule itself: by descending logit, then by ascending id."""
    rows = [sorted(range(len(row)), key=lambda token, row=row: (-row[token], token))[:k] for row in logits_RV.tolist()]
    return torch.tensor(rows)


DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("levels", [0, 1, 5, 40])
@pytest.mark.parametrize(("vocabulary", "k"), [(20, 8), (20, 20), (700, 10), (5000, 1), (5000, 10), (5000, 600)])
def test_of_equals_the_smaller_id_comes_first(vocabulary, k, levels, dtype):
    """Equal logits inside a block, across blocks (which are searched from V = 128·k on), at the edge and before it."""
    logits = tied_logits(4, vocabulary, levels=levels, dtype=dtype)
    values, ids = top_k(logits, k)
    assert ids.equal(in_order(logits, k)) and values.equal(logits.gather(1, ids))


def test_torch_and_blocks_alone_leave_equals_in_any_order():
    """Teeth: without the rule, other tokens than the smallest ids are kept; which, is torch's affair."""
    logits = torch.zeros(1, 5000)
    expected = [list(range(10))]
    assert top_k(logits, 10)[1].tolist() == expected
    assert truncation._largest(logits, 10)[1].tolist() != expected or logits.topk(10).indices.tolist() != expected


def test_ties_with_forbidden_tokens_and_fewer_tokens_than_k():
    inf = float("inf")
    values, ids = top_k(torch.tensor([[-inf, 1.0, -inf, 1.0, 0.0]]), 4)
    assert ids[0, :3].tolist() == [1, 3, 4] and values.tolist() == [[1.0, 1.0, 0.0, -inf]]
    assert ids[0, 3] in (0, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("percent", [5, 10, 15, 30, 35, 40, 60, 70, 85, 95])
@pytest.mark.parametrize("vocabulary", [20, 1300, 5000])
def test_a_nucleus_of_equal_tokens_is_what_it_is_on_paper(vocabulary, percent, dtype):
    """Twenty equal tokens hold 5 % each, the rest nothing: 40 % are reached by 8, those with the smallest ids (rounded
    sums say 9). Cut to ten first, they hold 10 % each."""
    logits = torch.full((1, vocabulary), float("-inf"), dtype=dtype)
    possible = torch.arange(20) * (vocabulary // 20)
    logits[0, possible] = 2.7
    probabilities = logits[0].double().softmax(-1).tolist()
    for chosen, count in (
        (Truncation(top_p=percent / 100), -(-percent // 5)),
        (Truncation(top_k=10, top_p=percent / 100), -(-percent // 10)),
    ):
        expected = possible[:count].tolist()
        assert (proposal(logits, chosen)[0] > 0).nonzero()[:, 0].tolist() == expected
        brute = truncated_probabilities(probabilities, chosen)
        assert [token for token, probability in enumerate(brute) if probability > 0] == expected


def test_a_nucleus_without_tolerance_is_caught():
    """Teeth: 8 · (1/20) added up in floating point stay below 0.4, so a ninth token would be kept."""
    twentieth = torch.full((20,), 0.05, dtype=torch.float64)
    before = twentieth.cumsum(0) - twentieth
    assert int((before < 0.4).sum()) == 9 != int((before < 0.4 * (1 - truncation.MASS_TOLERANCE)).sum()) == 8


@pytest.mark.parametrize("levels", [1, 5, 40])
@pytest.mark.parametrize(
    "chosen",
    [
        Truncation(top_k=7),
        Truncation(top_p=0.3),
        Truncation(top_k=50, top_p=0.6),
        Truncation(temperature=0.5, top_p=0.8),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", [64, 3000])
def test_candidates_with_many_equals_are_those_of_brute_force(vocabulary, chosen, levels):
    logits = tied_logits(3, vocabulary, levels=levels, dtype=torch.float32)
    brute = [truncated_probabilities(row.double().softmax(-1).tolist(), chosen) for row in logits]
    kept = proposal(logits, chosen)
    assert (kept > 0).equal(torch.tensor(brute) > 0)
    torch.testing.assert_close(kept, torch.tensor(brute), atol=1e-6, rtol=0)


def test_a_tiny_nucleus_keeps_the_likeliest():
    logits = random_logits(4, 300)
    assert (proposal(logits, Truncation(top_p=1e-9)) > 0).nonzero()[:, 1].equal(logits.argmax(-1))


@pytest.mark.parametrize("chosen", [Truncation(top_k=3), Truncation(top_p=0.5)], ids=str)
def test_rows_with_nan_are_left_to_the_draw_which_refuses_them(chosen):
    logits = torch.tensor([[1.0, float("nan"), 1.0, 1.0, 0.0]])
    assert candidates(logits, chosen)[0].isnan().any()
