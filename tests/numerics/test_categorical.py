"""Inverse-CDF draws: exact by a fine grid of uniforms, never a token of probability zero, right log-probabilities.

With u on the grid (i + ½)/n the share of draws of token v is within 1/n of its probability: draws are a deterministic
function of u, so the whole map can be checked without sampling.
"""

import pytest
import torch

from energylm.errors import ModelError
from energylm.numerics.categorical import accumulation_dtype, block_weights, draw_categorical, log_sum_exp
from energylm.samplers.continuations import sample_continuations

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


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("vocabulary", [5, 200, 3000])
def test_logits_of_half_precision_are_added_up_in_float32(vocabulary, dtype):
    """Logits of 8 or 11 bits are exact numbers; what is computed from them is right to float32. Teeth: with
    subtraction, exponential and sum in their own dtype the log-probabilities are wrong by hundredths of a nat."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (4 * torch.randn(64, vocabulary, generator=generator)).to(dtype)
    exact = logits.double().log_softmax(-1)
    index, log_prob = draw_categorical(logits, torch.rand(64, dtype=torch.float64, generator=generator))
    chosen = index[:, None]
    torch.testing.assert_close(log_prob, exact.gather(1, chosen)[:, 0], atol=1e-6, rtol=0)
    largest = logits.amax(-1, keepdim=True)
    torch.testing.assert_close(log_sum_exp(logits, largest), logits.double().logsumexp(-1), atol=1e-6, rtol=0)
    narrow = logits.gather(1, chosen) - largest - (logits - largest).exp().sum(-1, keepdim=True).log()
    assert (narrow.double() - exact.gather(1, chosen)).abs().max() > 1e-3
    assert block_weights(logits, largest).dtype == torch.float64


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_draws_from_half_precision_follow_their_probabilities(dtype):
    logits = (3 * torch.randn(200, generator=torch.Generator().manual_seed(1))).to(dtype)
    share, _, _ = shares(logits)
    assert (share - logits.double().softmax(-1)).abs().max() <= 1.5 / GRID


def test_devices_without_float64_add_up_in_float32():
    assert accumulation_dtype(torch.device("mps")) == torch.float32
    assert accumulation_dtype(torch.device("cpu")) == accumulation_dtype(torch.device("cuda:1")) == torch.float64


class MarkovDecoder:
    """Logits (V, V) in bfloat16, as a network's on an accelerator come, by the last token."""

    def __init__(self, logits_VV):
        self.logits_VV, self.vocabulary_size = logits_VV, len(logits_VV)

    def prefill(self, contexts):
        return None, self.logits_VV[[context[-1] for context in contexts]]

    def fork(self, prefix, *, copies, max_new_tokens):
        return None

    def step(self, state, tokens_R):
        return self.logits_VV[tokens_R]

    def bytes_per_row(self, *, context_tokens, max_new_tokens):
        return 1


def test_a_long_text_of_half_precision_logits_has_the_log_probability_that_its_tokens_add_up_to():
    """300 tokens by the sampler against a sum in float64 over the same table. Teeth: log-softmax in bfloat16 misses."""
    logits_VV = (3 * torch.randn(50, 50, generator=torch.Generator().manual_seed(0))).bfloat16()
    drawn = sample_continuations(MarkovDecoder(logits_VV), [[7]], n=4, max_new_tokens=300, seed=0)
    tokens_NT = drawn.tokens[0]
    before_NT = torch.cat([torch.full((4, 1), 7), tokens_NT[:, :-1]], dim=1)
    exact_N, narrow_N = (
        log_prob_VV[before_NT, tokens_NT].sum(1)
        for log_prob_VV in (logits_VV.double().log_softmax(-1), logits_VV.log_softmax(-1))
    )
    torch.testing.assert_close(drawn.log_prob[0], exact_N, atol=1e-4, rtol=0)
    assert (narrow_N - exact_N).abs().max() > 0.1
