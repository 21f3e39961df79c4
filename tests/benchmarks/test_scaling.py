"""Exponents of planted curves, counted operations by hand, and bars that see what grows too fast."""

import pytest

from energylm.benchmarks.harness import Rounds
from energylm.benchmarks.scaling import (
    AXES,
    LAYERS,
    VOCABULARY,
    WIDTH,
    N,
    ScalingResult,
    exponent,
    operations,
    result_of,
)

SIZES = {"n": (10, 100, 1000, 10_000), "processes": (1, 2)}


def planted(power, *, processes=0.0, memory=0.5):
    """Two rounds of curves c · size^power, which meet fixed costs at the smallest size."""
    seconds = {f"n {size}": Rounds((0.1 * size**power, 0.2 * size**power)) for size in SIZES["n"][1:]}
    seconds |= {"n 10": Rounds((5.0, 5.0))}
    seconds |= {f"processes {count}": Rounds((count**processes, 3 * count**processes)) for count in (1, 2)}
    megabytes = {"n": {size: size**memory for size in SIZES["n"]}, "processes": {1: 200.0, 2: 400.0}}
    return result_of(SIZES, seconds, megabytes)


def verdicts(result):
    return {bar.what.partition(" (")[0]: bar.verdict for bar in result.bars}


def test_the_slope_of_a_power():
    assert exponent((10, 100, 1000), [3 * size**1.5 for size in (10, 100, 1000)]) == pytest.approx(1.5)


def test_linear_growth_holds_and_fixed_costs_at_the_smallest_size_hide_nothing():
    result = planted(1.0)
    assert set(verdicts(result).values()) == {"holds"} and result.bars[0].measured == pytest.approx(1.0)
    assert "must: 1.00" in result.bars[0].what and "must: 0.00" in result.bars[2].what


@pytest.mark.parametrize(
    ("curve", "what"),
    [
        ({"power": 1.3}, "n: exponent of time"),
        ({"power": 1.0, "processes": 0.5}, "processes: exponent of time"),
        ({"power": 1.0, "memory": 2.0}, "n: exponent of memory"),
    ],
)
def test_what_grows_too_fast_is_seen(curve, what):
    judged = verdicts(planted(**curve))
    assert judged.pop(what) == "does not hold" and set(judged.values()) == {"holds"}


def test_the_operations_by_hand():
    """Two tokens of context: each 24 D² a layer, and attention to 1 + 2 keys; then N times a token that sees 3 keys,
    and its output layer."""
    token, key, output = LAYERS * 24 * WIDTH**2, LAYERS * 4 * WIDTH, 2 * WIDTH * VOCABULARY
    assert operations(context=2, new=1) == 2 * token + 3 * key + N * (token + 3 * key + output)
    far = (1_000_000, 2_000_000, 4_000_000)  # attention is all there is, in the end
    assert exponent(far, [AXES["new tokens"].must(size) for size in far]) == pytest.approx(2, abs=0.01)
    assert exponent((64, 256), [AXES["context"].must(size) for size in (64, 256)]) < 0.7  # most of it is N times NEW


def test_the_plot_and_the_json():
    result = planted(1.0)
    lines = {line.name: line for line in result.plot().series}
    assert list(lines["n"].x) == [1, 10, 100, 1000] and lines["processes"].y[-1] == pytest.approx(1.0)
    assert result.plot().record()["log_y"] is True and result.plot().png()[:4] == b"\x89PNG"
    assert ScalingResult.from_json(result.to_json()).curves == result.curves
