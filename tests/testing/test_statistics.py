"""The checks themselves: they fail by chance as often as they declare, see mistakes, and say what they saw."""

import numpy as np
import pytest
import torch
from scipy import stats

from energylm.testing import assert_mean, assert_same_counts, assert_same_distribution, assert_same_mean
from energylm.testing import statistics as statistics_module

ZIPF = torch.tensor([1 / (rank + 1) for rank in range(60)], dtype=torch.float64)
ZIPF /= ZIPF.sum()


def failures(check, repeats):
    count = 0
    for _ in range(repeats):
        try:
            check()
        except AssertionError:
            count += 1
    return count


def assert_rate(count, repeats, declared):
    """`count` lies in the central 99.99 % of the binomial law, with 30 % either way for the approximations."""
    assert stats.binom.ppf(5e-5, repeats, 0.7 * declared) <= count <= stats.binom.ppf(1 - 5e-5, repeats, 1.3 * declared)


@pytest.mark.parametrize("draws", [100, 1_000])  # at 100 most of the 60 outcomes have to be merged
def test_counts_fail_by_chance_as_declared(draws):
    rng, probabilities = np.random.default_rng(0), ZIPF.numpy()
    check = lambda: assert_same_distribution(  # noqa: E731
        torch.from_numpy(rng.multinomial(draws, probabilities)), ZIPF, false_alarm=0.02
    )
    assert_rate(failures(check, 3_000), 3_000, 0.02)


def test_rare_outcomes_left_apart_would_fail_too_often(monkeypatch):
    """Teeth for the test above: cells expected a twentieth of a time, not merged, more than double the false alarms."""
    monkeypatch.setattr(statistics_module, "MIN_EXPECTED", 0.05)
    with pytest.raises(AssertionError):
        test_counts_fail_by_chance_as_declared(100)


def test_two_samples_of_counts_fail_by_chance_as_declared():
    rng, probabilities = np.random.default_rng(1), ZIPF.numpy()
    check = lambda: assert_same_counts(  # noqa: E731
        torch.from_numpy(rng.multinomial(600, probabilities)),
        torch.from_numpy(rng.multinomial(1_500, probabilities)),
        false_alarm=0.02,
    )
    assert_rate(failures(check, 3_000), 3_000, 0.02)


def test_means_fail_by_chance_as_declared():
    rng = np.random.default_rng(2)
    one = lambda: assert_mean(torch.from_numpy(rng.normal(3, 2, 40)), 3.0, false_alarm=0.02)  # noqa: E731
    two = lambda: assert_same_mean(  # noqa: E731
        torch.from_numpy(rng.normal(3, 2, 40)), torch.from_numpy(rng.normal(3, 9, 70)), false_alarm=0.02
    )
    for check in (one, two):
        assert_rate(failures(check, 3_000), 3_000, 0.02)


def test_mistakes_of_a_tenth_are_seen():
    """10 % too much on one outcome in ten, 200,000 draws, default false alarm: caught in every one of 20 repeats."""
    rng = np.random.default_rng(3)
    fair = torch.full((10,), 0.1, dtype=torch.float64)
    biased = fair.clone()
    biased[0] *= 1.1
    biased /= biased.sum()
    draw = lambda p, n=200_000: torch.from_numpy(rng.multinomial(n, p.numpy()))  # noqa: E731
    assert failures(lambda: assert_same_distribution(draw(biased), fair), 20) == 20
    assert failures(lambda: assert_same_counts(draw(biased), draw(fair)), 20) == 20
    assert failures(lambda: assert_mean(torch.from_numpy(rng.normal(0.1, 1, 10_000)), 0.0), 20) == 20
    shifted = lambda: (torch.from_numpy(rng.normal(m, 1, 10_000)) for m in (0.0, 0.12))  # noqa: E731
    assert failures(lambda: assert_same_mean(*shifted()), 20) == 20
    assert failures(lambda: assert_same_distribution(draw(fair), fair), 20) == 0


def test_merged_rare_outcomes_still_count():
    """Half the mass of 100 rare outcomes is lost: no single cell is expected often, their sum is."""
    probabilities = torch.cat([torch.full((100,), 1e-3), torch.full((1,), 0.9)]).double()
    counts = torch.cat([torch.tensor([5, 0]).repeat(50), torch.tensor([4750])])
    with pytest.raises(AssertionError, match="rare outcomes merged"):
        assert_same_distribution(counts, probabilities)
    assert_same_distribution(torch.cat([torch.tensor([10, 0]).repeat(50), torch.tensor([4500])]), probabilities)


def test_an_impossible_outcome_fails_outright():
    probabilities = torch.tensor([0.5, 0.5, 0.0])
    assert_same_distribution(torch.tensor([5000, 5000, 0]), probabilities)
    with pytest.raises(AssertionError, match=r"outcome 2 is impossible .* drawn 1 times"):
        assert_same_distribution(torch.tensor([5000, 5000, 1]), probabilities)


def test_messages_say_statistic_threshold_and_p():
    """(70, 30) against (1/2, 1/2): X² = 2·20²/50 = 16 with one degree of freedom; threshold 15.137 at 1e-4."""
    with pytest.raises(AssertionError, match=r"chi-square 16 > 15\.137 with 1 degrees of freedom .* p = 6\.3e-05"):
        assert_same_distribution(torch.tensor([70, 30]), torch.tensor([0.5, 0.5]))
    assert_same_distribution(torch.tensor([69, 31]), torch.tensor([0.5, 0.5]))
    with pytest.raises(AssertionError, match=r"mean 1\.5 is not 1: t = 9\.9\d+ beyond ±4\.0\d* .* p = "):
        assert_mean(torch.tensor([1.0, 2.0]).repeat(50), 1.0)


def test_two_sample_statistic_equals_scipy():
    first, second = torch.tensor([30, 50, 20]), torch.tensor([60, 40, 100])
    expected = stats.chi2_contingency(torch.stack([first, second]).numpy(), correction=False)
    with pytest.raises(AssertionError, match=f"chi-square {expected.statistic:.5g} .* p = {expected.pvalue:.2g}"):
        assert_same_counts(first, second)
    samples = torch.linspace(0, 1, 50).double(), torch.linspace(0.5, 2, 40).double()
    expected = stats.ttest_ind(*(s.numpy() for s in samples), equal_var=False)
    with pytest.raises(AssertionError, match=f"t = {expected.statistic:.4g} .* p = {expected.pvalue:.2g}"):
        assert_same_mean(*samples)


def test_constant_samples():
    assert_mean(torch.full((100,), 0.1), float(torch.tensor(0.1)))
    assert_mean(torch.zeros(100), 0.0)
    with pytest.raises(AssertionError):
        assert_mean(torch.full((100,), 0.1), 0.2)
    with pytest.raises(AssertionError):
        assert_mean(torch.zeros(100), 1e-3)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: assert_same_distribution(torch.tensor([5, 5]), torch.tensor([0.5, 0.5])), "too few draws"),
        (lambda: assert_same_distribution(torch.tensor([500, 500]), torch.tensor([0.5, 0.6])), "sum to 1"),
        (lambda: assert_same_distribution(torch.tensor([500]), torch.tensor([0.5, 0.5])), "one length"),
        (lambda: assert_same_distribution(torch.tensor([50.5, 50]), torch.tensor([0.5, 0.5])), "whole numbers"),
        (lambda: assert_same_distribution(torch.tensor([-50, 50]), torch.tensor([0.5, 0.5])), "whole numbers"),
        (lambda: assert_same_counts(torch.tensor([1, 2]), torch.tensor([0, 0])), "not all 0"),
        (lambda: assert_same_counts(torch.tensor([1, 2]), torch.tensor([2, 1])), "too few draws"),
        (lambda: assert_mean(torch.zeros(29), 0.0), "at least 30"),
        (lambda: assert_mean(torch.full((50,), torch.nan), 0.0), "finite"),
        (lambda: assert_mean(torch.randn(50), 0.0, false_alarm=0.0), "between 0 and 1"),
    ],
)
def test_a_check_that_could_not_fail_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()
