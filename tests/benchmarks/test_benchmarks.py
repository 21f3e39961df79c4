"""Every benchmark runs (in small), prints its table, writes the agreed JSON, and leaves with 1 where a bar fails."""

import json
import sys
import time

import pytest

from energylm.benchmarks import BENCHMARKS, harness
from energylm.benchmarks.bench import Bench
from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, Rounds, interleaved, interleaved_seconds
from energylm.benchmarks.pll import operations_saved
from energylm.cli.main import main
from energylm.errors import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *sorted(BENCHMARKS.keys() - {"ray"}),
        pytest.param("ray", marks=pytest.mark.xdist_group("ray")),
    ],
)
def test_quick_run(name, tmp_path, request, monkeypatch):
    if name == "ray":
        request.getfixturevalue("ray_cluster")  # which all tests of Ray share
    arguments = ["bench", name, "--quick", "--repeats", "1", "--json", str(tmp_path / "b.json")]
    monkeypatch.setattr(sys, "argv", ["energylm", *arguments])
    with pytest.raises(SystemExit) as leaving:
        main()
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["name"] == name and written["machine"]["cpu_count"]
    assert written["bars"] and all({"what", "measured", "bar", "holds"} <= bar.keys() for bar in written["bars"])
    assert leaving.value.code == (0 if all(bar["holds"] for bar in written["bars"]) else 1)


def test_bars_hold_on_their_own_side():
    assert Bar("speed", 6.0, 6.0).holds and Bar("speed", 5.9, 6.0).verdict == "does not hold"
    assert Bar("memory", 1.2, 1.2, at_least=False).holds and not Bar("memory", 1.3, 1.2, at_least=False).holds
    assert not BenchmarkResult("x", [Bar("speed", 7, 6), Bar("memory", 2, 1, at_least=False)]).holds


@pytest.mark.parametrize(
    ("values", "at_least", "verdict"),
    [
        ((6.1, 6.5, 6.2, 7.0, 1.0), True, "holds"),  # the middle half is 6.1 to 6.5: one slow round decides nothing
        ((5.0, 6.5, 5.5, 7.0, 6.2), True, "too close to call"),  # 5.5 to 6.5, though the median is above
        ((5.0, 5.5, 5.9, 7.0, 4.0), True, "does not hold"),
        ((5.0, 5.5, 5.9, 7.0, 4.0), False, "holds"),
        ((5.0, 6.5, 5.5, 7.0, 6.2), False, "too close to call"),
        ((6.1, 6.5, 6.2, 7.0, 1.0), False, "does not hold"),
    ],
)
def test_a_bar_holds_only_beyond_the_spread(values, at_least, verdict):
    judged = Bar.on("ratio", Rounds(values), 6.0, at_least=at_least)
    assert judged.verdict == verdict and judged.holds == (verdict == "holds")
    assert judged.measured == sorted(values)[2] and (judged.low, judged.high) == (sorted(values)[1], sorted(values)[3])


def test_ratios_pair_the_rounds():
    """A minute in which both are three times slower cancels within its round; the ratio of medians sees it (teeth)."""
    ours, peer = Rounds((4.0, 12.0, 4.0)), Rounds((2.0, 6.0, 6.0))
    assert (ours / peer).values == (2.0, 2.0, 4.0 / 6.0) and (ours / peer).median == 2.0
    assert ours.median / peer.median == 4.0 / 6.0
    assert (12 / ours).values == (3.0, 1.0, 3.0) and (ours / 2).values == (0.5 * ours).values == (2.0, 6.0, 2.0)


def test_contenders_take_turns_after_one_warm_up_each(capsys):
    """Of a's 90, 3, 1, 2 the first is the warm-up."""
    calls, values = [], {"a": iter([90.0, 3.0, 1.0, 2.0]), "b": iter([0.0, 5.0, 5.0, 7.0])}

    def contender(name):
        calls.append(name)
        return next(values[name])

    contenders = {name: lambda name=name: contender(name) for name in values}
    rounds = interleaved(contenders, Options(repeats=3), unit="tokens/s")
    assert calls == ["a", "b"] * 4 and rounds == {"a": Rounds((3.0, 1.0, 2.0)), "b": Rounds((5.0, 5.0, 7.0))}
    said = capsys.readouterr().err
    assert "warm-up: a 90, b 0 tokens/s" in said and "round 3 of 3: a 2, b 7 tokens/s; 0:00 left" in said


@pytest.mark.parametrize(("options", "rounds"), [({}, 3), ({"full": True}, 9)])
def test_rounds_end_when_time_is_up_but_never_before_the_third(options, rounds, monkeypatch, capsys):
    """Of the 300 seconds that a benchmark has, 290 are over, and every measurement takes 20."""
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(harness.time, "monotonic", lambda: float(next(clock)))
    run = interleaved({"a": lambda: 1.0}, Options(repeats=9, started=-290.0, **options), unit="tokens/s")
    assert len(run["a"].values) == rounds
    assert ("3 rounds must do" in capsys.readouterr().err) == (rounds == 3)


def test_seconds_are_those_of_the_call():
    run = interleaved_seconds({"sleep": lambda: time.sleep(0.02), "nothing": lambda: None}, Options(repeats=1))
    assert run["sleep"].median >= 0.02 > run["nothing"].median >= 0


def test_operations_that_electric_saves_by_hand():
    """One sentence of two tokens through one layer of width 1: a pass is 2 · (24 + 4 · 2) = 64; two passes with an
    output layer of 2 · 1 · 16 each are 2 · (64 + 32)."""
    assert operations_saved([2], layers=1, width=1, vocabulary_size=16) == 2 * (64 + 32) / 64


def test_an_unknown_benchmark_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown benchmark 'nothing'; known: shared-prefix"):
        Bench.checked({"name": "nothing"})
    with pytest.raises(ConfigError, match="quick and full exclude each other"):
        Bench.checked({"name": "train", "quick": True, "full": True})


def test_a_bar_that_fails_is_shown_and_leaves_with_1():
    bench, slow = Bench(name="train"), BenchmarkResult("toy", [Bar("speed", 5.0, 6.0)], {"chunk": 64})
    assert "| speed | 5 | – | ≥ 6 | does not hold |" in bench.shown(slow) and "| chunk | 64 |" in bench.shown(slow)
    assert bench.exit_code(slow) == 1
    assert bench.exit_code(BenchmarkResult("toy", [Bar("speed", 7.0, 6.0)])) == 0  # teeth
    written = slow.to_json()["bars"][0]
    assert written["verdict"] == "does not hold" and written["holds"] is False
    close = BenchmarkResult("toy", [Bar.on("speed", Rounds((5.0, 6.5, 7.0)), 6.0)], {"rate": Rounds((1.0, 2.0, 4.0))})
    assert bench.exit_code(close) == 1  # more repeats may tell
    assert "| speed | 6.5 | 5.75 to 6.75 | ≥ 6 | too close to call |" in bench.shown(close)
    assert "| rate | 2 | 1.5 to 3 |" in bench.shown(close)
    assert close.to_json()["details"]["rate"] == {"values": [1.0, 2.0, 4.0], "median": 2.0, "low": 1.5, "high": 3.0}
