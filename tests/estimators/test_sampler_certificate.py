"""The certificate lies below the sampler's own log-density, enumerated exactly, for n = 1, 2, 3, and is tight at n = 1;
and its bound with confidence fails no oftener than it says, summed exactly over all pools.

q_n(x) = n P(x) Σ over the n − 1 companions of P(companions) · w(x) / (w(x) + Σ w_i): a sum over 9^(n−1) tuples.
"""

import math
from itertools import product

import pytest
import torch

from energylm.errors import ConfigError
from energylm.estimators.sampler_certificate import certified_log_prob, certified_perplexity, sampler_log_normalizer
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


@pytest.mark.parametrize("n", [2, 3])
def test_exp_of_the_certificate_is_the_samplers_density_or_less_on_average(n):
    """What Markov's inequality needs. Each draw left out in turn, the estimates exp L_i have the density itself as
    their mean, exactly; the exp of the mean of the L_i lies below. Deliberate mistake: with no draw left out there are
    n + 1 weights over n, and the estimates' mean is another."""
    exact = exact_sampler_log_prob(n).exp()

    def density(lm_log_prob, log_weight, companions):
        weights = torch.cat([log_weight[:, None], companions], dim=1)
        return (lm_log_prob + log_weight - weights.logsumexp(1)).exp() * n

    def one_left_out(lm_log_prob, log_weight, pool):
        kept = [[j for j in range(n) if j != i] for i in range(n)]
        return torch.stack([density(lm_log_prob, log_weight, pool[:, others]) for others in kept]).mean(0)

    torch.testing.assert_close(expected_certificate(n, one_left_out), exact, atol=1e-12, rtol=0)
    mean_exp = expected_certificate(n, lambda *given: certified_log_prob(*given).exp())
    assert (mean_exp <= exact + 1e-12).all() and (mean_exp > 0.8 * exact).all()
    assert ((expected_certificate(n, density) - exact).abs() > 1e-3).any()


RARE, HEAVY, DRAWS = 0.001, 1000.0, 100  # P = [.999, .001], weight 1000 on token 1, 100 draws; the text is token 0
KINDS = 4  # of pools: with 0, 1, 2 or 3 draws of token 1


def binomial(n, k, p):
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def rare_weight_language():
    """The sampler's exact log-density of the text, and of each kind of pool its probability and its certificate."""
    density = sum(
        binomial(DRAWS - 1, m, RARE) * DRAWS * (1 - RARE) / (1 + DRAWS - 1 - m + m * HEAVY) for m in range(DRAWS)
    )
    pools = torch.zeros(KINDS, DRAWS, dtype=torch.float64)
    for m in range(KINDS):
        pools[m, :m] = math.log(HEAVY)
    lm_log_prob = torch.full((KINDS,), math.log(1 - RARE), dtype=torch.float64)
    certificates = certified_log_prob(lm_log_prob, torch.zeros_like(lm_log_prob), pools)
    return math.log(density), [binomial(DRAWS, m, RARE) for m in range(KINDS)], certificates


def failure_rate(texts, bound_of):
    """The probability, over the pools of `texts` copies of the text, that `bound_of` their certificates lies below the
    sampler's true perplexity: a sum over how many pools are of each kind. What is left out is less than 5e-6 a text."""
    log_density, probability, certificates = rare_weight_language()
    total = 0.0
    for later in product(range(texts + 1), range(5), range(3)):
        counts = (texts - sum(later), *later)
        if counts[0] >= 0:
            orders = math.factorial(texts) // math.prod(map(math.factorial, counts))
            chance = orders * math.prod(p**count for p, count in zip(probability, counts, strict=True))
            bound = bound_of(certificates.repeat_interleave(torch.tensor(counts)))
            total += chance * (bound < math.exp(-log_density) * (1 - 1e-12))
    return total


def measured(log_prob, **options):
    return certified_perplexity(log_prob, torch.ones(len(log_prob)), convention="test", **options)


@pytest.mark.parametrize("texts", [1, 10, 34, 36])
def test_the_bound_fails_no_oftener_than_it_says(texts):
    """A weight of 1000 that one draw in a thousand has: nine pools of ten hold none of it and certify the language
    model's own perplexity, which is too low. The bound with 95 % confidence fails in 5 % of runs at most, in 3.3 % with
    34 texts. Deliberate mistake: the bound without log(1/δ), which is the value in expectation, fails in 90.5 % of runs
    with one text and in more than 5 % with all of these."""
    rate = failure_rate(texts, lambda log_prob: measured(log_prob).bound)
    assert rate <= 0.05
    assert rate == pytest.approx({1: 0.0, 10: 0.0, 34: 0.0333, 36: 0.0273}[texts], abs=1e-4)
    without = failure_rate(texts, lambda log_prob: measured(log_prob).value)
    assert without > 0.05
    if texts == 1:
        log_density, probability, certificates = rare_weight_language()
        assert without == pytest.approx((1 - RARE) ** DRAWS, abs=1e-5) == pytest.approx(0.9048, abs=1e-4)
        assert sum(p * float(c) for p, c in zip(probability, certificates, strict=True)) < log_density  # on average


def test_the_bound_by_hand():
    """Two texts of log-probability −3 and −7 with 2 and 3 tokens: exp(10 / 5) in expectation, exp((10 + log 20) / 5)
    with 95 % confidence, and (10 + log 20) / (30 log 2) bits per byte."""
    log_prob, tokens = torch.tensor([-3.0, -7.0]), torch.tensor([2, 3])
    result = certified_perplexity(log_prob, tokens, torch.tensor([10, 20]), convention="test")
    assert result.value == pytest.approx(math.exp(2))
    assert result.bound == pytest.approx(math.exp((10 + math.log(20)) / 5))
    assert result.bound_bits_per_byte == pytest.approx((10 + math.log(20)) / (30 * math.log(2)))
    assert (result.confidence, result.level, result.tokens, result.bytes) == (0.95, "95 %", 5, 30)
    assert result.to_json()["bound"] == result.bound and result.to_json()["confidence"] == 0.95
    assert result.standard_error > 0  # over texts and pools, for other texts
    assert measured(log_prob, confidence=0.5).bound == pytest.approx(math.exp((10 + math.log(2)) / 2))
    with pytest.raises(ConfigError, match="between 0 and 1, came 95; "):
        measured(log_prob, confidence=95)
