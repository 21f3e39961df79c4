"""Inverse-CDF draws: exact by a fine grid of uniforms, never a token of probability zero, right log-probabilities.

With u on the grid (i + ½)/n the share of draws of token v is within 1/n of its probability: draws are a deterministic
function of u, so the whole map can be checked without sampling.
"""

import pytest
import torch

from energylm.errors import ModelError
from energylm.numerics.categorical import draw_categorical

GRID = 20_000


def shares(logits_V, draw=draw_categorical):
    uniform = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    index, log_prob = draw(logits_V.expand(GRID, -1), uniform)
    return torch.bincount(index, minlength=len(logits_V)) / GRID, index, log_prob


@pytest.mark.parametrize("vocabulary", [1, 2, 5, 63, 64, 65, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_map_from_uniforms_to_tokens_is_the_inverse_cdf(vocabulary, dtype):
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary), dtype=dtype) * 3
    probability = logits.double().softmax(-1)
    share, index, log_prob = shares(logits)
    assert (share - probability).abs().max() <= 1.5 / GRID
    assert (index.diff() >= 0).all()  # larger u, later token
    torch.testing.assert_close(log_prob, probability.log()[index], atol=1e-6, rtol=0)


def test_a_uniform_not_scaled_by_the_total_is_caught():
    def unscaled(logits, uniform):
        return torch.searchsorted(logits.exp().cumsum(-1), uniform[:, None]).clamp(max=logits.shape[1] - 1)[:, 0], None

    logits = torch.tensor([0.5, 1.0, 0.0])
    share, _, _ = shares(logits, unscaled)
    assert (share - logits.softmax(-1)).abs().max() > 0.05


def test_impossible_tokens_are_never_drawn_even_at_the_ends():
    logits = torch.full((150,), float("-inf"))
    logits[[3, 70, 130]] = torch.tensor([0.0, 1.0, -2.0])
    ends = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    index, log_prob = draw_categorical(logits.expand(4, -1), ends)
    assert set(index.tolist()) <= {3, 70, 130}
    assert index[0] == 3 and index[-1] == 130
    assert log_prob.isfinite().all()


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 1e4 - 1.0, -1e4]])
    _, log_prob = draw_categorical(logits, torch.tensor([0.0], dtype=torch.float64))
    assert log_prob.item() == pytest.approx(-torch.tensor(1 + torch.e**-1).log().item(), abs=1e-6)


@pytest.mark.parametrize("vocabulary", [3, 200])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_logits_that_give_no_distribution_are_one_line(vocabulary, bad):
    """Row 1 holds NaN or +inf, or nothing but -inf: there is no softmax of it. Its neighbours alone are drawn from."""
    logits = torch.zeros(3, vocabulary)
    logits[:, 0] = float("-inf")
    uniform = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert (draw_categorical(logits, uniform)[0] > 0).all()
    logits[1] = float("-inf") if bad is None else logits[1]
    logits[1, -1] = float("-inf") if bad is None else bad
    assert logits[1].softmax(-1).isnan().any()
    with pytest.raises(ModelError, match="1 of 3 rows of logits hold NaN or infinity, or leave no token to draw"):
        draw_categorical(logits, uniform)
