"""The certificate lies below the sampler's own log-density, enumerated exactly, for n = 1, 2, 3, and is tight at n = 1.

q_n(x) = n P(x) Σ over the n − 1 companions of P(companions) · w(x) / (w(x) + Σ w_i): a sum over 9^(n−1) tuples.
"""

import pytest
import torch

from energylm.estimators.sampler_certificate import certified_log_prob, sampler_log_normalizer
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    enumerate_expectation,
    exact_joint,
    exact_language_model,
)

MODEL = TabularLanguageModel.random(3, 2, seed=6)
ENERGY = TabularEnergy.random(3, 2, seed=7, scale=1.5)
BASE = exact_language_model(MODEL, max_new_tokens=2)
LOG_WEIGHT = -ENERGY.energies(BASE.tokens, BASE.lengths)


def exact_sampler_log_prob(n):
    if n == 1:
        return BASE.log_prob

    def kept(companions):
        total = LOG_WEIGHT.exp() + LOG_WEIGHT[companions].exp().sum(1, keepdim=True)
        return LOG_WEIGHT.exp() / total

    return (n * BASE.probabilities * enumerate_expectation(BASE.probabilities, kept, n=n - 1)).log()


def expected_certificate(n, certificate=certified_log_prob):
    """(9,) the expectation of the certificate of every sequence over all pools of n draws."""

    def of_pools(pools):
        rows = [
            certificate(BASE.log_prob[x].expand(len(pools)), LOG_WEIGHT[x].expand(len(pools)), LOG_WEIGHT[pools])
            for x in range(len(LOG_WEIGHT))
        ]
        return torch.stack(rows, dim=1)

    return enumerate_expectation(BASE.probabilities, of_pools, n=n)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_sampler_is_normalised_and_the_certificate_below_it(n):
    exact = exact_sampler_log_prob(n)
    assert float(exact.exp().sum()) == pytest.approx(1, abs=1e-10)
    assert (expected_certificate(n) <= exact + 1e-12).all()


def test_one_draw_is_the_language_model_itself():
    torch.testing.assert_close(expected_certificate(1), BASE.log_prob, atol=1e-12, rtol=0)


def test_it_tends_to_the_joint_model():
    joint = exact_joint(MODEL, ENERGY, max_new_tokens=2)
    gaps = [float((expected_certificate(n) - joint.log_prob).abs().max()) for n in (2, 4)]
    assert gaps[1] < gaps[0]


def test_leaving_the_text_itself_out_of_the_pool_is_caught():
    """Deliberate mistake: log (1/n) Σ w_i without w(x) is no bound: it exceeds the sampler's density somewhere."""

    def without_itself(lm_log_prob, log_weight, pool):
        return lm_log_prob + log_weight - (pool.logsumexp(-1) - torch.tensor(float(pool.shape[1])).log())

    assert (expected_certificate(2, without_itself) > exact_sampler_log_prob(2)).any()


def test_leave_one_out_average_equals_the_plain_expectation():
    """Two routes: pools of n with each left out in turn, or companions of n − 1 drawn afresh."""
    x = 4

    def plain(companions):
        return ((LOG_WEIGHT[x].exp() + LOG_WEIGHT[companions].exp().sum(1)) / 3).log()

    direct = enumerate_expectation(BASE.probabilities, plain, n=2)
    pooled = enumerate_expectation(
        BASE.probabilities,
        lambda pools: sampler_log_normalizer(LOG_WEIGHT[x].expand(len(pools)), LOG_WEIGHT[pools]),
        n=3,
    )
    torch.testing.assert_close(pooled, direct, atol=1e-12, rtol=0)
