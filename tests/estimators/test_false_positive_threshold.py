"""The threshold keeps its promise exactly, for every number of texts: enumerated, not sampled."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from energylm.errors import ConfigError, DataError
from energylm.estimators.false_positive_threshold import (
    GroupThresholds,
    false_positive_threshold,
    texts_needed,
    thresholds_by_group,
)

RATES = (0.01, 0.05, 0.1, 0.25, 0.5)


def test_by_hand():
    """19 texts, 5 %: k = ⌈20 · 0.95⌉ = 19, the largest. 199 texts, 1 %: k = ⌈200 · 0.99⌉ = 198, two lie above."""
    assert false_positive_threshold(range(1, 20), 0.05).threshold == 19
    found = false_positive_threshold(range(1, 200), 0.01)
    assert found.threshold == found.rank == 198 and found.texts == 199
    assert found.expected_rate == pytest.approx(2 / 200)


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


QUARTER = 0.25  # needs 3 texts


def flagged_of_every_bag(thresholds_of):
    """For all 3^7 ways to deal 7 scores to 3 groups: how many texts of each large group and of the small ones together
    lie above the threshold that the 6 others give. Yields (texts, flagged) of each such part, and of the whole bag."""
    for dealt in itertools.product(range(3), repeat=7):
        sizes, flagged = Counter(dealt), Counter()
        for new, group in enumerate(dealt):
            others = [place for place in range(7) if place != new]
            found = thresholds_of([float(place) for place in others], [dealt[place] for place in others]).of(group)
            part = group if sizes[group] >= 1 / QUARTER else "small"
            flagged[part] += found is not None and new > found.threshold
        small = sum(size for size in sizes.values() if size < 1 / QUARTER)
        parts = {group: size for group, size in sizes.items() if size >= 1 / QUARTER} | {"small": small}
        yield from ((texts, flagged[part], part) for part, texts in parts.items())
        yield 7, flagged.total(), "all"


def test_by_group_the_rate_is_kept_in_every_bag_of_texts():
    """Exact: each of the 7 texts is equally likely the new one, so a share of at most α of each part is the promise.
    In large groups as many are flagged as can be, ⌊α · size⌋."""
    for texts, flagged, part in flagged_of_every_bag(
        lambda scores, groups: thresholds_by_group(scores, groups, QUARTER)
    ):
        assert flagged <= QUARTER * texts
        if part in (0, 1, 2):
            assert flagged == int(QUARTER * texts)


def kept(thresholds_of):
    return all(flagged <= QUARTER * texts for texts, flagged, _ in flagged_of_every_bag(thresholds_of))


def test_small_groups_must_be_taken_together_in_one_way_whoever_is_new():
    """Two mistakes. All texts as the threshold of small groups: high scores of a small group are flagged beside those
    of the large ones. Groups of exactly the needed size left out of the rest: the parts then depend on who is new."""

    def from_all(scores, groups):
        found = thresholds_by_group(scores, groups, QUARTER)
        return GroupThresholds(found.own, false_positive_threshold(scores, QUARTER), len(scores))

    def without_the_borderline(scores, groups):
        found = thresholds_by_group(scores, groups, QUARTER)
        rest = [s for s, g in zip(scores, groups, strict=True) if g not in found.own]
        return GroupThresholds(
            found.own, false_positive_threshold(rest, QUARTER) if len(rest) >= 3 else None, len(rest)
        )

    assert not kept(from_all)
    assert not kept(without_the_borderline)


def test_by_group_by_hand():
    """Rate 1/4 needs 3 texts: group a (1, 2, 3) has its own threshold 3; b and c are small. The rest is a, b, c, since
    a would be small, too, beside a new text of b: 6 texts, k = ⌈7 · 0.75⌉ = 6, the largest."""
    found = thresholds_by_group([1, 2, 3, 10, 11, 12], list("aaabbc"), QUARTER)
    assert found.of("a").threshold == 3 and found.of("b") == found.of("c") == found.of("never seen") == found.rest
    assert found.rest.threshold == 12 and found.rest.texts == found.rest_texts == 6
    larger = thresholds_by_group([1, 2, 3, 4, 10, 11], list("aaaabb"), QUARTER)
    assert larger.rest is None and larger.rest_texts == 2 and larger.of("b") is None
    with pytest.raises(DataError, match="2 scores of human text but 1 groups; name one a score"):
        thresholds_by_group([1.0, 2.0], ["a"], QUARTER)
