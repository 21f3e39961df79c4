"""Every benchmark runs (in small), prints its table, writes the agreed JSON, and leaves with 1 where a bar fails."""

import json
import sys
import time

import pytest

from energylm.benchmarks import BENCHMARKS
from energylm.benchmarks.bench import Bench
from energylm.benchmarks.harness import Bar, BenchmarkResult, interleaved, interleaved_seconds
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
    assert Bar("speed", 6.0, 6.0).holds and not Bar("speed", 5.9, 6.0).holds
    assert Bar("memory", 1.2, 1.2, at_least=False).holds and not Bar("memory", 1.3, 1.2, at_least=False).holds
    assert not BenchmarkResult("x", [Bar("speed", 7, 6), Bar("memory", 2, 1, at_least=False)]).holds


def test_contenders_take_turns_after_one_warm_up_each():
    """Of a's 90, 3, 1, 2 the first is the warm-up, so the median is 2 (with it: 2.5)."""
    calls, values = [], {"a": iter([90.0, 3.0, 1.0, 2.0]), "b": iter([0.0, 5.0, 5.0, 7.0])}

    def contender(name):
        calls.append(name)
        return next(values[name])

    medians = interleaved({name: lambda name=name: contender(name) for name in values}, repeats=3)
    assert calls == ["a", "b"] * 4 and medians == {"a": 2.0, "b": 5.0}


def test_seconds_are_those_of_the_call():
    seconds = interleaved_seconds({"sleep": lambda: time.sleep(0.02), "nothing": lambda: None}, repeats=1)
    assert seconds["sleep"] >= 0.02 > seconds["nothing"] >= 0


def test_an_unknown_benchmark_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown benchmark 'nothing'; known: shared-prefix"):
        Bench.checked({"name": "nothing"})


def test_a_bar_that_fails_is_shown_and_leaves_with_1():
    bench, slow = Bench(name="train"), BenchmarkResult("toy", [Bar("speed", 5.0, 6.0)], {"chunk": 64})
    assert "| speed | 5 | ≥ 6 | NO |" in bench.shown(slow) and "| chunk | 64 |" in bench.shown(slow)
    assert bench.exit_code(slow) == 1
    assert bench.exit_code(BenchmarkResult("toy", [Bar("speed", 7.0, 6.0)])) == 0  # teeth
    assert slow.to_json()["bars"] == [{"what": "speed", "measured": 5.0, "bar": 6.0, "at_least": True, "holds": False}]
