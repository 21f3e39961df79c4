"""Agreement and odds of raters: alpha by hand and by enumeration, binomial tails exactly."""

from itertools import permutations
from math import comb

import numpy as np
import pytest

from energylm.apps.study.design import Exclusion, Qualification
from energylm.estimators.pairwise_preference import krippendorff_alpha, one_side_passes, pass_probability


def alpha_by_definition(votes):
    """1 − D_o/D_e from the coincidences of values, as Krippendorff defines them."""
    units = {}
    for (_, unit), vote in votes.items():
        units.setdefault(unit, []).append(vote)
    units = {unit: given for unit, given in units.items() if len(given) > 1}
    coincidences, values = {}, sorted({vote for given in units.values() for vote in given})
    for given in units.values():
        for a, b in permutations(range(len(given)), 2):
            key = (given[a], given[b])
            coincidences[key] = coincidences.get(key, 0) + 1 / (len(given) - 1)
    totals = {value: sum(coincidences.get((value, other), 0) for other in values) for value in values}
    n = sum(totals.values())
    observed = sum(count for (a, b), count in coincidences.items() if a != b) / n
    expected = sum(totals[a] * totals[b] for a in values for b in values if a != b) / (n * (n - 1))
    return 1 - observed / expected


def votes_of(*rows):
    """Rows of raters, a letter a unit, a dot where the rater did not vote."""
    return {
        (f"r{rater}", f"u{unit}"): letter
        for rater, row in enumerate(rows)
        for unit, letter in enumerate(row)
        if letter != "."
    }


def test_alpha_by_hand():
    """Two raters, votes ab and bb: o_ab = o_ba = 1, o_bb = 2, n = 4, n_a = 1, n_b = 3.
    D_o = 2/4, D_e = 2·1·3/(4·3) = 1/2, alpha = 0."""
    assert krippendorff_alpha(votes_of("ab", "bb")) == pytest.approx(0.0)
    assert krippendorff_alpha(votes_of("ab", "ab")) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_alpha_by_its_definition_with_gaps(seed):
    random = np.random.default_rng(seed)
    rows = ["".join(random.choice(list("aab.t."), size=30)) for _ in range(5)]
    votes = votes_of(*rows)
    assert krippendorff_alpha(votes) == pytest.approx(alpha_by_definition(votes), abs=1e-12)
    shifted = votes | {("r0", "u0"): "a" if votes.get(("r0", "u0")) != "a" else "b"}
    assert krippendorff_alpha(shifted) != pytest.approx(alpha_by_definition(votes), abs=1e-12)


@pytest.mark.parametrize("rows", [("aaa", "aaa"), ("ab..", "..ab"), ("a",), ("aab", "aa.")])
def test_alpha_is_undefined_without_two_values_on_shared_units(rows):
    """The last: the only b stands alone on its unit, so nothing that can be compared differs."""
    assert krippendorff_alpha(votes_of(*rows)) is None


@pytest.mark.parametrize(("items", "needed"), [(24, 16), (8, 6), (15, 10), (3, 2)])
def test_odds_are_binomial_tails(items, needed):
    assert pass_probability(items, needed, 0.5) == pytest.approx(
        sum(comb(items, k) for k in range(needed, items + 1)) / 2**items
    )
    chance = 0.9
    exact = sum(comb(items, k) * chance**k * (1 - chance) ** (items - k) for k in range(needed, items + 1))
    assert pass_probability(items, needed, chance) == pytest.approx(exact)


def test_odds_that_the_design_states():
    """A coin passes 24 items at 2/3 in 7.6 % of cases and 6 checks in 34 %: too short an examination by itself."""
    assert round(pass_probability(24, Qualification().needed, 0.5), 4) == 0.0758
    assert round(pass_probability(6, Exclusion().needed_checks(6), 0.5), 2) == 0.34
    assert pass_probability(0, 0, 0.5) == 1.0


def test_marks_are_reached_and_not_missed_by_rounding():
    """2/3 of 24 is 16 (in floating point 16.0 or a little more), of 25 it is 17."""
    assert [Qualification(items=n).needed for n in (0, 3, 24, 25, 30)] == [0, 2, 16, 17, 20]
    assert [Exclusion().needed_checks(n) for n in (0, 1, 2, 3, 8)] == [0, 1, 2, 2, 6]
    assert Exclusion(check_mark=0).needed_checks(9) == 0


def test_one_side_never_passes_a_balanced_qualification():
    assert not one_side_passes(24, 16) and one_side_passes(1, 1) and one_side_passes(0, 0)
