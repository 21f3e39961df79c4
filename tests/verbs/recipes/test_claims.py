"""The language of claims: what it says, what it refuses, and that a claim that fails is told like one that holds."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from energylm.errors import ConfigError
from energylm.verbs.recipes.claims import claims_table, difference_of, gated, judge, look_up, mean_of_runs, paths, slope

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
    assert judge("", predicate, [RESULTS]).verdict == ("holds" if truth else "does not hold")


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
        judge("", predicate, [RESULTS])


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
        ("bit.gain < 3", "a list is compared with a number"),
    ],
)
def test_what_cannot_be_told_is_not_called_false(predicate, why):
    judged = judge("says", predicate, [RESULTS])
    assert judged.verdict == "cannot be told" and why in judged.numbers


def test_of_a_result_that_is_none_every_part_is_none():
    """A rate that too few texts show is no mistake of the report, and no number for a claim."""
    results = {"a": {"rate": None, "other": {"value": 0.5}}}
    assert look_up(results, "a.rate.value") is None and look_up(results, "a.other.value") == 0.5
    assert judge("", "a.rate.value > 0", [results]).verdict == "cannot be told"
    with pytest.raises(LookupError, match=r"a\.rat"):  # teeth: a misspelt name is one
        look_up(results, "a.rat.value")


def test_all_verdicts_stand_in_the_table_with_their_numbers():
    """Teeth: a table that left out what does not hold would have one row fewer."""
    claims = [
        judge("a", "bit.upper < base.ppl", [RESULTS], published="14.64 < 17.57"),
        judge("b", "bit.upper > 99", [RESULTS]),
    ]
    table = claims_table(claims)
    shown = [[row[0], row[1], row[6]] for row in table.rows]
    assert shown == [["a", "holds", "14.64 < 17.57"], ["b", "does not hold", None]]
    assert table.rows[0][7] == "bit.upper = 15, base.ppl = 20"
    assert table.rows[0][2:6] == [5.0, None, None, 0.25]  # one run: a difference, no interval


def runs(*pairs):
    """Of one number each: what two models reached in runs with seeds of their own."""
    return [{"a": {"x": a}, "b": {"x": b}} for a, b in pairs]


def test_three_runs_by_hand():
    """Differences 1, 2, 3: mean 2, s = 1, half-width 4.303 / √3 = 2.484, so the interval reaches zero."""
    judged = judge("", "a.x < b.x", runs((1, 2), (1, 3), (1, 4)))
    assert judged.verdict == "too close to call" and judged.difference.value == 2
    assert judged.difference.upper == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert judged.numbers == "a.x = 1, b.x = 3" and judged.difference.relative == pytest.approx(2 / 3)
    assert judge("", "a.x < b.x", runs((1, 3), (1, 3.1), (1, 2.9))).verdict == "holds"
    assert judge("", "a.x > b.x", runs((1, 3), (1, 3.1), (1, 2.9))).verdict == "does not hold"


def test_runs_are_compared_in_pairs():
    """Seeds move both models alike: differences are steady though the numbers are not. Teeth: unpaired they overlap."""
    steady = runs((1, 2), (11, 12.1), (21, 21.9))
    assert judge("", "a.x < b.x", steady).verdict == "holds"
    assert judge("", "a.x < b.x", runs((1, 21.9), (11, 2), (21, 12.1))).verdict == "too close to call"


def test_two_lists_in_one_run_are_pairs_too():
    nats = [{"a": {"x": [1.0, 5.0, 3.0]}, "b": {"x": [2.0, 6.1, 3.9]}}]
    judged = judge("", "a.x < b.x", nats)
    assert judged.verdict == "holds" and judged.difference.value == pytest.approx(1.0)
    assert judge("", "a.x < b.x", [{"a": {"x": [1.0]}, "b": {"x": [1.0, 2.0]}}]).verdict == "cannot be told"


@pytest.mark.parametrize(
    ("predicate", "verdict"),
    [
        ("a.yes > 0 and a.perhaps > 0", "too close to call"),
        ("a.yes > 0 or a.perhaps > 0", "holds"),
        ("a.no > 0 and a.perhaps > 0", "does not hold"),
        ("a.no > 0 or a.perhaps > 0", "too close to call"),
        ("0 < a.perhaps < a.yes", "too close to call"),
        ("increasing(a.rising)", "holds"),
        ("decreasing(a.rising)", "does not hold"),
        ("increasing(a.wavering)", "too close to call"),
    ],
)
def test_three_verdicts_join_as_in_kleenes_logic(predicate, verdict):
    seeds = [
        {"a": {"yes": 9 + e, "no": -9 - e, "perhaps": 9 * e, "rising": [1, 5 + e], "wavering": [1, 1 + e]}}
        for e in (-0.1, 0.3, -0.2)
    ]
    judged = judge("", predicate, seeds)
    assert judged.verdict == judged.difference.verdict == verdict


def test_what_does_not_vary_needs_no_interval():
    same = runs((5, 5), (5, 5), (5, 5))
    assert judge("", "a.x <= b.x", same).verdict == "holds"
    assert judge("", "a.x < b.x", same).verdict == "does not hold"


def test_where_nothing_differs_a_claim_holds_in_one_of_forty():
    """A 95 % interval of three runs of equal models lies above zero with probability 2.5 %; ± 4 standard errors over
    20,000 repeats are ± 0.44 %. Teeth: a normal quantile in the place of Student's is far too narrow."""
    differences = np.random.default_rng(0).normal(size=(20_000, 3))
    judged = [difference_of(list(row), as_numbers=True, relative=None) for row in differences]
    assert abs(np.mean([difference.verdict == "holds" for difference in judged]) - 0.025) < 0.0045
    half = norm.ppf(0.975) * differences.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(differences.mean(axis=1) > half) > 0.08


def test_means_of_runs():
    assert mean_of_runs([1, 2]) == 1.5 and mean_of_runs([3, 3]) == 3 and mean_of_runs(["a", "b"]) == "a"
    assert mean_of_runs([[1, 2], [3, 4]]) == [2, 3] and mean_of_runs([[1], [2, 3]]) == [1]
    assert mean_of_runs([7]) == 7 and mean_of_runs([None, None]) is None


def test_findings_are_not_judged_where_the_control_fails():
    def claims(control):
        runs = [{"a": {"x": 1.0, "y": 2.0}, "control": control}]
        judged = [judge("c", "control > 20", runs, kind="ours"), judge("f", "a.x < a.y", runs)]
        return gated([*judged, judge("s", "a.x < a.y", runs, kind="accounting")], ["c"])

    assert [claim.verdict for claim in claims(30.0)] == ["holds"] * 3
    control, finding, accounting = claims(0.0)
    assert (control.verdict, finding.verdict, accounting.verdict) == ("does not hold", "cannot be told", "holds")
    assert "the control “c” fails: control = 0" in finding.numbers and finding.difference is None
