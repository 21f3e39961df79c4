"""Soft argmax, soft samples and continuous top-k: by hand, in their hard limits, gradients by finite differences."""

import math

import pytest
import torch
from torch.testing import assert_close

from energylm.errors import ConfigError
from energylm.numerics.relaxations import continuous_top_k, gumbel_noise, soft_argmax, soft_sample

FLOAT = torch.float64
SHARP = 1e4


def random_scores(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed)) * 3


def test_continuous_top_k_of_a_hand_made_matrix():
    """Two elements, two symbols, α = 1, k = 2:   s = | 3  1 |      m_1 = 3, m_2 = 2
                                                     | 2  0 |
    p_1 ∝ exp(−(s − 3)²) = exp(0), exp(−4); exp(−1), exp(−9)
    p_2 ∝ exp(−(s − 2)²) = exp(−1), exp(−1); exp(0), exp(−4)

    Back-pointers are the sums along rows, symbols the sums along columns, scores Σ p s:
    3·1 + 1·e⁻⁴ + 2·e⁻¹ and 3·e⁻¹ + 1·e⁻¹ + 2·1, each over the total.
    """
    top = continuous_top_k(torch.tensor([[[3.0, 1.0], [2.0, 0.0]]], dtype=FLOAT), k=2, alpha=1.0)
    e1, e4, e9 = math.exp(-1), math.exp(-4), math.exp(-9)
    first, second = 1 + e4 + e1 + e9, e1 + e1 + 1 + e4
    back = torch.tensor([[(1 + e4) / first, (e1 + e9) / first], [2 * e1 / second, (1 + e4) / second]], dtype=FLOAT)
    symbol = torch.tensor([[(1 + e1) / first, (e4 + e9) / first], [(e1 + 1) / second, (e1 + e4) / second]], dtype=FLOAT)
    score = torch.tensor([(3 + e4 + 2 * e1) / first, (4 * e1 + 2) / second], dtype=FLOAT)
    assert_close(top.back_BKJ[0], back)
    assert_close(top.symbol_BKV[0], symbol)
    assert_close(top.score_BK[0], score)
    assert top.parent_BK.tolist() == [[0, 1]] and top.choice_BK.tolist() == [[0, 0]]
    # Teeth: rows and columns are both of size 2, and a sum along the wrong one is another number.
    assert not torch.allclose(top.back_BKJ, top.symbol_BKV, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e2, SHARP])
def test_the_limit_is_the_hard_top_k(alpha, dtype):
    """Integers 0 … 19 in a random order: every gap is 1, exp(−α) vanishes."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1)).to(dtype).view(1, 4, 5)
    top = continuous_top_k(order, k=4, alpha=alpha)
    values, index = order.flatten(1).topk(4)
    assert_close(top.score_BK, values)
    assert_close(top.back_BKJ, torch.nn.functional.one_hot(index // 5, 4).to(dtype))
    assert_close(top.symbol_BKV, torch.nn.functional.one_hot(index % 5, 5).to(dtype))
    assert torch.equal(top.parent_BK, index // 5) and torch.equal(top.choice_BK, index % 5)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 30.0])
def test_gradients_by_finite_differences(alpha):
    """All three outputs at once; random scores lie far from a change of order."""
    scores = random_scores(2, 3, 4).requires_grad_()

    def outputs(scores):
        top = continuous_top_k(scores, k=3, alpha=alpha)
        return top.back_BKJ, top.symbol_BKV, top.score_BK

    assert torch.autograd.gradcheck(outputs, (scores,), atol=1e-7)


def test_gradients_are_those_of_the_formula_written_out():
    """A second route: autograd through the k² |V| matrices."""
    scores = random_scores(3, 2, 5, seed=2)
    weight_back, weight_symbol, weight_score = (random_scores(3, 4, n, seed=n) for n in (2, 5, 1))

    def written_out(scores):
        best = scores.flatten(1).topk(4).values
        p = (-0.7 * (scores.flatten(1)[:, None] - best[..., None]) ** 2).softmax(-1).unflatten(2, (2, 5))
        return p.sum(3), p.sum(2), (p * scores[:, None]).sum((2, 3))

    gradients = []
    for route in ("ours", "written out"):
        leaf = scores.clone().requires_grad_()
        if route == "ours":
            top = continuous_top_k(leaf, k=4, alpha=0.7)
            back, symbol, score = top.back_BKJ, top.symbol_BKV, top.score_BK
        else:
            back, symbol, score = written_out(leaf)
        ((back * weight_back).sum() + (symbol * weight_symbol).sum() + (score * weight_score[..., 0]).sum()).backward()
        gradients.append(leaf.grad)
    assert_close(*gradients)


def test_candidates_of_minus_infinity_get_no_weight_and_no_nan():
    scores = random_scores(1, 2, 4)
    scores[0, 0, 1:] = float("-inf")
    scores.requires_grad_()
    top = continuous_top_k(scores, k=3, alpha=0.5)
    assert top.symbol_BKV.isfinite().all() and top.score_BK.isfinite().all()
    (top.score_BK.sum() + (top.symbol_BKV * random_scores(4)).sum()).backward()
    assert scores.grad.isfinite().all() and float(scores.grad[0, 0, 1:].abs().max()) == 0
    kept = continuous_top_k(scores.detach()[:, 1:], k=3, alpha=0.5)
    with_one_more = continuous_top_k(
        torch.cat([scores.detach()[:, 1:], torch.full((1, 1, 4), float("-inf"), dtype=FLOAT)], 1), k=3, alpha=0.5
    )
    assert_close(with_one_more.symbol_BKV, kept.symbol_BKV)


def test_float32_is_finite_at_any_sharpness():
    scores = (random_scores(4, 5, 50) * 30).float().requires_grad_()
    for alpha in (1e-3, 1.0, 1e2, SHARP):
        top = continuous_top_k(scores, k=5, alpha=alpha)
        assert_close(top.back_BKJ.sum(-1), torch.ones(4, 5))
        (gradient,) = torch.autograd.grad(top.score_BK.sum() + top.symbol_BKV.square().sum(), scores)
        assert gradient.isfinite().all()


def test_what_stays_for_the_gradient_grows_with_the_beam_not_with_its_square():
    """Recomputed, not kept: all that autograd saves of a call, in numbers of J·V."""
    saved = {}
    for k in (2, 4, 8):
        scores, kept = random_scores(1, k, 1000).requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t):
            continuous_top_k(scores, k=k, alpha=1.0)
        saved[k] = sum(kept)
    assert saved[4] / saved[2] < 2.1 and saved[8] / saved[4] < 2.1


def test_soft_argmax_and_soft_sample_have_their_hard_limits():
    scores, uniforms = random_scores(6, 5), torch.rand(6, 5, dtype=FLOAT, generator=torch.Generator().manual_seed(3))
    hard = torch.nn.functional.one_hot(scores.argmax(-1), 5).to(FLOAT)
    assert_close(soft_argmax(scores, alpha=SHARP), hard)
    drawn = torch.nn.functional.one_hot((scores + gumbel_noise(uniforms)).argmax(-1), 5).to(FLOAT)
    assert_close(soft_sample(scores, gumbel_noise(uniforms), alpha=SHARP), drawn)
    assert not torch.equal(hard, drawn)
    assert_close(soft_argmax(scores, alpha=1.0), scores.softmax(-1))


def test_gumbel_noise_draws_from_the_softmax():
    """40,000 draws of 4 symbols; a chi-square of 3 degrees beyond 24 has probability 2.5e-5."""
    scores = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=FLOAT)
    uniforms = torch.rand(40_000, 4, dtype=FLOAT, generator=torch.Generator().manual_seed(4))
    counts = (scores + gumbel_noise(uniforms)).argmax(-1).bincount(minlength=4).to(FLOAT)
    expected = 40_000 * scores.softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 24
    flipped = 40_000 * (-scores).softmax(-1)  # teeth
    assert float(((counts - flipped) ** 2 / flipped).sum()) > 24
    assert gumbel_noise(torch.tensor([0.0, 1 - 2**-24])).isfinite().all()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_an_alpha_that_is_not_positive_is_refused(alpha):
    for relaxation in (
        lambda: soft_argmax(torch.zeros(2), alpha=alpha),
        lambda: continuous_top_k(torch.zeros(1, 1, 2), k=1, alpha=alpha),
    ):
        with pytest.raises(ConfigError, match="a relaxation needs a finite α above 0"):
            relaxation()


def test_more_than_there_is_to_choose_from_is_refused():
    with pytest.raises(ConfigError, match="a soft beam of 5 is wider than the 4 candidates"):
        continuous_top_k(torch.zeros(1, 1, 4), k=5, alpha=1.0)
    few = torch.tensor([[[0.0, 1.0, float("-inf")]]])
    with pytest.raises(ConfigError, match="a soft beam of 3 is wider"):
        continuous_top_k(few, k=3, alpha=1.0)
