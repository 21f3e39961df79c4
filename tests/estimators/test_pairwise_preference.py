"""Rates, tests and intervals of preferences: by hand, by enumeration, and as scipy has them."""

from math import comb, sqrt

import pytest
from scipy.stats import binomtest

from energylm.errors import DataError
from energylm.estimators.pairwise_preference import majority, preference, rate


def verdicts(wins, ties, losses):
    return ["second"] * wins + ["tie"] * ties + ["first"] * losses


@pytest.mark.parametrize(
    ("votes", "verdict"),
    [
        (["second", "second", "first"], "second"),
        (["first", "second", "first"], "first"),
        (["first", "second"], "tie"),  # the third vote was dropped
        (["tie", "tie", "second"], "second"),  # votes for neither count for neither
        (["tie"], "tie"),
        (["first"], "first"),
    ],
)
def test_majority(votes, verdict):
    assert majority(votes) == verdict


def test_no_vote_is_no_tie():
    with pytest.raises(DataError, match="at least one vote"):
        majority([])
    assert preference([]) is None


def test_rates_by_hand():
    """10 pairs, 5 won, 2 tied, 3 lost: 5/10 strictly, 7/10 with ties, 5/8 of the decided."""
    found = preference(verdicts(5, 2, 3))
    assert (found.strict.interval.value, found.inclusive.interval.value, found.decided.interval.value) == (
        0.5,
        0.7,
        0.625,
    )
    assert (found.strict.n, found.inclusive.n, found.decided.n, found.n) == (10, 10, 8, 10)
    assert preference(verdicts(0, 3, 0)).decided is None


@pytest.mark.parametrize(("count", "n"), [(0, 1), (1, 1), (5, 8), (176, 333), (180, 320)])
def test_p_is_the_upper_tail_by_enumeration(count, n):
    tail = sum(comb(n, k) for k in range(count, n + 1)) / 2**n
    assert rate(count, n).p_value == pytest.approx(tail, rel=1e-9)
    assert rate(count, n).p_value == binomtest(count, n, 0.5, alternative="greater").pvalue
    wrong = sum(comb(n, k) for k in range(count + 1, n + 1)) / 2**n  # P(X > k): the tail without its own count
    assert rate(count, n).p_value != pytest.approx(wrong, rel=1e-6)


def test_a_published_row_of_table_2():
    """176 of 333 is the published 52.85 %, and its single-sided p the published 0.16."""
    found = rate(176, 333)
    assert round(100 * found.interval.value, 2) == 52.85 and round(found.p_value, 2) == 0.16
    assert round(binomtest(176, 333).pvalue, 2) != 0.16  # two-sided would be twice that


@pytest.mark.parametrize(("count", "n"), [(0, 5), (5, 5), (176, 333)])
def test_wilson_by_its_formula(count, n):
    """(p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)."""
    z, p = 1.959963984540054, count / n
    middle, reach = (p + z * z / (2 * n)), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    interval = rate(count, n).interval
    assert interval.lower == pytest.approx(max(0, (middle - reach) / (1 + z * z / n)), abs=1e-12)
    assert interval.upper == pytest.approx(min(1, (middle + reach) / (1 + z * z / n)), abs=1e-12)
    wald = (p - z * sqrt(p * (1 - p) / n), p + z * sqrt(p * (1 - p) / n))
    assert interval.lower != pytest.approx(wald[0], abs=1e-4) or interval.upper != pytest.approx(wald[1], abs=1e-4)


def test_to_json_holds_every_number():
    found = preference(verdicts(5, 2, 3)).to_json()
    assert (found["wins"], found["ties"], found["losses"], found["n"]) == (5, 2, 3, 10)
    assert found["strict"]["interval"]["value"] == 0.5 and found["decided"]["n"] == 8
    assert preference(verdicts(0, 1, 0)).to_json()["decided"] is None
