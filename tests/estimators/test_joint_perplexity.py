"""The joint model's interval by hand, its sampling error by repetition, and perplexity by position."""

import math

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
    assert result.bits_per_byte[0] == pytest.approx(nats / math.log(2) / 30)
    assert result.sampling_error == pytest.approx(result.lower * math.sqrt(2 * 0.5**2) / 5)  # se of each T_2 is ½
    assert (result.ess.smallest, result.ess.median, result.n) == (pytest.approx(1.6), pytest.approx(1.6), 2)
    # Teeth: with the signs of E confused the interval is another.
    assert result.lower != pytest.approx(math.exp((10.5 + 2 * math.log(2)) / 5))


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
