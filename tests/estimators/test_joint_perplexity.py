"""The joint model's interval by hand, its sampling error by repetition, and perplexity by position."""

import math
from dataclasses import replace

import pytest
import torch

from energylm.estimators.joint_perplexity import joined, joint_perplexity
from energylm.estimators.log_partition import log_partition
from energylm.estimators.position_perplexity import position_perplexity

LM = torch.tensor([-4.0, -6.0], dtype=torch.float64)
ENERGY = torch.tensor([-1.0, 0.5], dtype=torch.float64)
TOKENS = torch.tensor([2, 3])


def interval(estimate, certified=LM, size=None):
    return joint_perplexity(LM, ENERGY, estimate, certified, TOKENS, size, convention="test")


def test_by_hand():
    """Weights 1 and 3 in both contexts: T_2 = log 2, and the upper estimate 3 T_2 − 2 T_1 with T_1 the mean of log 3
    and log 1: 3 log 2 − log 3. Nats of the lower end: 4 − 1 + 6 + 0.5 + 2 log 2 over 5 tokens."""
    weights = torch.tensor([[0.0, math.log(3)]] * 2, dtype=torch.float64)
    result = interval(joined([log_partition(weights[:1]), log_partition(weights[1:])]), size=torch.tensor([10, 20]))
    nats = 9.5 + 2 * math.log(2)
    assert result.lower == pytest.approx(math.exp(nats / 5))
    assert result.upper == pytest.approx(math.exp((9.5 + 2 * (3 * math.log(2) - math.log(3))) / 5))
    assert result.base.value == pytest.approx(math.exp(10 / 5)) == pytest.approx(result.certified.value)
    assert result.certified.bound == pytest.approx(math.exp((10 + math.log(20)) / 5))  # 95 % confidence
    assert "upper end with 95 % confidence over the samples, for these texts" in result.convention
    assert "certified 7.389 in expectation and at most 13.45 with 95 % confidence" in result.summary()
    assert result.bits_per_byte[0] == pytest.approx(nats / math.log(2) / 30)
    assert result.sampling_error == pytest.approx(result.lower * math.sqrt(2 * 0.5**2) / 5)  # se of each T_2 is ½
    assert (result.ess.smallest, result.ess.median, result.n) == (pytest.approx(1.6), pytest.approx(1.6), 2)
    # Teeth: with the signs of E confused the interval is another.
    assert result.lower != pytest.approx(math.exp((10.5 + 2 * math.log(2)) / 5))


def test_texts_are_paired_so_that_their_means_are_the_perplexities():
    """Texts of 2 and 3 tokens; the spread is the delta method's. Teeth: each text's own perplexity has another mean."""
    result = interval(log_partition(torch.tensor([[0.0, math.log(3)]] * 2, dtype=torch.float64)))
    paired = {name: torch.tensor(values, dtype=torch.float64) for name, values in result.paired.items()}
    assert float(paired["base"].mean()) == pytest.approx(result.base.value)
    assert float(paired["joint"].mean()) == pytest.approx(result.upper)
    slope = result.base.value / 2.5  # dP = P · dnats / T, with 2.5 tokens a text
    assert float(paired["base"][1] - paired["base"][0]) == pytest.approx(slope * (6.0 - 4.0))
    own = ((ENERGY + result.log_partition.upper - LM) / TOKENS).exp()
    assert float(own.mean()) != pytest.approx(result.upper)
    assert result.to_json()["paired"]["base"] == pytest.approx(paired["base"].tolist())


def test_caution_and_warning_are_joined():
    estimate = log_partition(torch.zeros(2, 100))
    assert interval(estimate).warning is None
    cautious = joint_perplexity(LM, ENERGY, estimate, LM, TOKENS, convention="test", caution="a doubt")
    assert cautious.warning == "a doubt" and cautious.to_json()["warning"] == "a doubt"
    assert cautious.bits_per_byte is None
    weak = joint_perplexity(
        LM, ENERGY, log_partition(torch.zeros(2, 3)), LM, TOKENS, convention="test", caution="a doubt"
    )
    assert weak.warning.startswith("a doubt; for 2 of 2 contexts")
    assert "\n" not in weak.summary() and "base 7.389" in weak.summary()


@pytest.mark.parametrize(("ess", "said"), [(19.96, "19.9"), (1.0 - 1e-16, "1.0"), (3.05, "3.0")])
def test_a_weak_sample_is_never_shown_as_strong(ess, said):
    """19.96 is fewer than 20 and must not be shown as 20.0, which rounding to the nearest would do (teeth)."""
    estimate = replace(log_partition(torch.zeros(1, 30)), ess=torch.tensor([ess], dtype=torch.float64))
    assert f"fewer than 20 independent ones (the least: {said})" in estimate.warning
    assert f"{19.96:.1f}" == "20.0"


@pytest.mark.parametrize("n", [20, 23])
def test_twenty_equal_weights_are_twenty_samples(n):
    """Arithmetic gives n equal weights a little less than n: no ground for a warning. Nineteen are too few."""
    weights = torch.full((1, n), 0.1, dtype=torch.float64)
    estimate = replace(log_partition(weights), ess=torch.tensor([n - 1e-12], dtype=torch.float64))
    assert estimate.warning is None and log_partition(weights).warning is None
    assert "(the least: 19.0)" in log_partition(weights[:, :19]).warning


def test_sampling_error_is_the_spread_of_repetitions():
    """500 repetitions of 200 log-normal weights a context: stated against true spread. The relative error of a standard
    deviation from 500 draws is 3 %; 15 % is five of them."""
    generator = torch.Generator().manual_seed(0)
    found = [interval(log_partition(torch.randn(2, 200, generator=generator, dtype=torch.float64))) for _ in range(500)]
    stated = sum(result.sampling_error for result in found) / len(found)
    true = float(torch.tensor([result.lower for result in found]).std())
    assert stated / true == pytest.approx(1, abs=0.15)


def test_positions_by_hand():
    """Two texts, two positions; the higher log-probability belongs to the lower perplexity."""
    base = torch.tensor([[-1.0, -2.0], [-3.0, -2.0]])
    lower, upper = base + 0.5, base + 0.7
    futures = [log_partition(torch.zeros(2, 50)), log_partition(torch.tensor([[0.0, math.log(3)]] * 2))]
    result = position_perplexity(
        base, lower, upper, torch.tensor([-1.4, -1.4]), futures, first_position=121, convention="test"
    )
    assert result.positions == (121, 122)
    assert [entry.value for entry in result.base] == pytest.approx([math.exp(2), math.exp(2)])
    assert [entry.value for entry in result.optimistic] == pytest.approx([math.exp(1.3)] * 2)
    assert [entry.value for entry in result.pessimistic] == pytest.approx([math.exp(1.5)] * 2)
    assert result.gain[0] == pytest.approx((math.exp(2) - math.exp(1.5), math.exp(2) - math.exp(1.3)))
    assert result.last_exact.value == pytest.approx(math.exp(1.4))
    # The first step's numerator and the second's denominator are one estimate, whose error is ½ in each of two texts.
    assert result.sampling_error == pytest.approx([math.exp(1.3) * math.sqrt(0.25 / 2)] * 2)
    assert "at 1 of 2 positions" in result.warning and result.to_json()["n"] == 50


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle():
    """Effective sizes 50 and 1.6: the median is 25.8. Teeth: torch's median is the lower of the two, 1.6."""
    future = log_partition(torch.zeros(2, 50))
    future = replace(future, ess=torch.tensor([50.0, 1.6], dtype=torch.float64))
    log_prob = torch.zeros(2, 1)
    result = position_perplexity(
        log_prob, log_prob, log_prob, torch.zeros(2), [future], first_position=1, convention="test"
    )
    assert result.median_ess == (pytest.approx(25.8),) and float(future.ess.median()) == pytest.approx(1.6)
