"""The threshold keeps its promise exactly, for every number of texts: enumerated, not sampled."""

import math

import numpy as np
import pytest

from energylm.errors import ConfigError, DataError
from energylm.estimators.false_positive_threshold import false_positive_threshold, texts_needed

RATES = (0.01, 0.05, 0.1, 0.25, 0.5)


def test_by_hand():
    """19 texts, 5 %: k = ⌈20 · 0.95⌉ = 19, the largest. 199 texts, 1 %: k = ⌈200 · 0.99⌉ = 198, two lie above."""
    assert false_positive_threshold(range(1, 20), 0.05).threshold == 19
    found = false_positive_threshold(range(1, 200), 0.01)
    assert found.threshold == 198 and found.expected_rate == pytest.approx(2 / 200) and found.texts == 199


def left_out_rate(texts: int, threshold_of) -> float:
    """The share of n + 1 exchangeable texts that lie above the threshold of the n others: each is left out once."""
    scores = np.arange(texts + 1, dtype=float)
    flagged = [scores[i] > threshold_of(np.delete(scores, i)) for i in range(texts + 1)]
    return float(np.mean(flagged))


@pytest.mark.parametrize("rate", RATES)
def test_the_rate_is_kept_for_every_number_of_texts_and_cannot_be_lower(rate):
    """Over all ranks that a new text can have among n + 1: at most `rate`, and one rank lower would exceed it."""
    for texts in range(texts_needed(rate), texts_needed(rate) + 60):
        found = left_out_rate(texts, lambda others: false_positive_threshold(others, rate).threshold)
        assert found <= rate + 1e-12
        assert found == pytest.approx(false_positive_threshold(np.zeros(texts), rate).expected_rate)
        assert found + 1 / (texts + 1) > rate


@pytest.mark.parametrize("rate", RATES)
def test_the_quantile_of_the_sample_breaks_the_promise(rate):
    """The mistake: k = ⌈n(1 − α)⌉, off by less than one, flags more than the asked share for some n."""

    def sample_quantile(others):
        return np.sort(others)[math.ceil(len(others) * (1 - rate) - 1e-9) - 1]

    sizes = range(texts_needed(rate), texts_needed(rate) + 60)
    assert max(left_out_rate(texts, sample_quantile) for texts in sizes) > rate + 1e-9


def test_ties_are_on_the_safe_side():
    found = false_positive_threshold([1.0] * 30 + [2.0] * 10, 0.1)
    assert found.threshold == 2.0  # flagging "above 1" would flag a quarter


def test_the_upper_limit_holds_95_times_in_100():
    """Scores uniform on [0, 1]: the rate of a threshold is one minus it. 4,000 sets: ± 0.0138 at 4 standard errors."""
    numbers = np.random.default_rng(0).random((4000, 99))
    kept = [1 - (found := false_positive_threshold(row, 0.05)).threshold <= found.upper_95 for row in numbers]
    assert abs(np.mean(kept) - 0.95) < 4 * math.sqrt(0.05 * 0.95 / 4000)


def test_too_few_texts_say_how_many_are_needed():
    assert [texts_needed(rate) for rate in (0.01, 0.05, 0.1, 0.5)] == [99, 19, 9, 1]
    with pytest.raises(DataError, match=r"0\.01 needs at least 99, came 40; add 59, or ask for 0\.024 or more"):
        false_positive_threshold(np.zeros(40), 0.01)
    for wrong in (0.0, 1.0, -0.1):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            texts_needed(wrong)
    with pytest.raises(DataError, match="not finite"):
        false_positive_threshold([0.0, math.nan], 0.5)
