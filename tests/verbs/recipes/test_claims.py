"""The language of claims: what it says, what it refuses, and that a claim that fails is told like one that holds."""

import math

import pytest

from energylm.errors import ConfigError
from energylm.verbs.recipes.claims import claims_table, judge, look_up, paths, slope

RESULTS = {
    "base": {"ppl": 20.0, "name": "tiny", "nothing": None, "hole": math.nan},
    "bit": {"lower": 14.0, "upper": 15, "gain": [5.0, 4.0, 1.0]},
    "n": {"widths": [0.9, 0.5, 0.5]},
}


@pytest.mark.parametrize(
    ("predicate", "truth"),
    [
        ("bit.upper < base.ppl", True),
        ("bit.upper > base.ppl", False),
        ("10 < bit.lower <= bit.upper < base.ppl", True),
        ("10 < bit.upper <= bit.lower", False),
        ("base.ppl - bit.upper >= 0.25 * base.ppl", True),
        ("-bit.lower < 0 and (bit.upper < 1 or base.ppl / 4 >= 5)", True),
        ("bit.lower < 0 or bit.upper < 0", False),
        ("decreasing(bit.gain)", True),
        ("increasing(bit.gain)", False),
        ("decreasing(n.widths)", False),  # a plateau does not decrease
        ("slope(n.widths) < 0", True),
        ("first(bit.gain) > last(bit.gain)", True),
        ("abs(mean(bit.gain) - 10 / 3) < 1e-9", True),
        ("max(bit.gain) == 5", None),
        ("min(bit.gain) < max(bit.lower, bit.upper)", True),
    ],
)
def test_predicates_say_what_python_would(predicate, truth):
    if truth is None:  # equality of measured numbers is no claim
        with pytest.raises(ConfigError, match="not in the language"):
            paths(predicate)
        return
    paths(predicate)
    assert judge("", predicate, RESULTS).verdict == ("holds" if truth else "does not hold")


def test_slope_by_hand():
    """Through (0, 3), (1, 1), (2, 2): the mean is 2, Σ(x − 1)(y − 2) = −1·1 + 1·0 = −1, Σ(x − 1)² = 2."""
    assert slope([3, 1, 2]) == -0.5


@pytest.mark.parametrize(
    "predicate",
    [
        "__import__('os').system('true') < 1",
        "base.ppl.__class__ < (lambda: 1)()",
        "[x for x in (1, 2)] < 3",
        "bit.gain[0] < 1",
        "open('x') < 1",
        "abs(bit.lower, key=1) < 1",
        "'a' < 'b'",
        "True < 2",
        "2 ** 99999 < 3",
        "bit.upper if base.ppl else 1",
        "not bit.upper < 1",
        "bit.upper",
        "bit.upper + 1",
        "mean(bit.gain)",
        "bit.upper and bit.upper < 1",
        "bit.upper <",
        "(x := 1) < 2",
        "base.ppl() < 1",
        "abs(bit.lower).real < 2",
    ],
)
def test_everything_else_is_refused_before_it_runs(predicate):
    with pytest.raises(ConfigError) as refused:
        paths(predicate)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError):
        judge("", predicate, RESULTS)


@pytest.mark.parametrize(
    ("predicate", "why"),
    [
        ("bit.uper < base.ppl", "the results have no bit.uper"),
        ("unit.upper < base.ppl", "the results have no unit"),
        ("base.name < 3", "base.name is tiny"),
        ("base.hole < 3", "base.hole is nan"),
        ("base.nothing < 3", "base.nothing is None"),
        ("bit < 3", "bit is {"),
        ("bit.lower / (bit.lower - bit.lower) < 1", "division by zero"),
        ("bit.gain < 3", "not supported between"),
    ],
)
def test_what_cannot_be_told_is_not_called_false(predicate, why):
    judged = judge("says", predicate, RESULTS)
    assert judged.verdict == "cannot be told" and why in judged.numbers


def test_of_a_result_that_is_none_every_part_is_none():
    """A rate that too few texts show is no mistake of the report, and no number for a claim."""
    results = {"a": {"rate": None, "other": {"value": 0.5}}}
    assert look_up(results, "a.rate.value") is None and look_up(results, "a.other.value") == 0.5
    assert judge("", "a.rate.value > 0", results).verdict == "cannot be told"
    with pytest.raises(LookupError, match=r"a\.rat"):  # teeth: a misspelt name is one
        look_up(results, "a.rat.value")


def test_all_verdicts_stand_in_the_table_with_their_numbers():
    """Teeth: a table that left out what does not hold would have one row fewer."""
    claims = [
        judge("a", "bit.upper < base.ppl", RESULTS, published="14.64 < 17.57"),
        judge("b", "bit.upper > 99", RESULTS),
    ]
    table = claims_table(claims)
    assert [row[:3] for row in table.rows] == [["a", "holds", "14.64 < 17.57"], ["b", "does not hold", None]]
    assert table.rows[0][3] == "bit.upper = 15, base.ppl = 20"
