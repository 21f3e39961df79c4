"""Difference of means by hand and by simulation; densities integrate to one."""

import math

import numpy as np
import pytest

from energylm.errors import DataError
from energylm.evaluation.density import density_gap, density_plot


def test_by_hand():
    """Own −4, −6 (mean −5, variance 2), real −7, −8, −9 (mean −8, variance 1): Δ = 3, error √(2/2 + 1/3)."""
    gap = density_gap([-4.0, -6.0], [-7.0, -8.0, -9.0])
    assert (gap.own_mean, gap.real_mean, gap.difference) == (-5.0, -8.0, 3.0)
    assert gap.standard_error == pytest.approx(math.sqrt(2 / 2 + 1 / 3))
    assert density_gap(gap.real, gap.own).difference == 3.0
    assert gap.to_json()["own"] == [-4.0, -6.0]


def test_log_z_of_each_context_matters():
    """A language of known law: real text drawn from the joint model itself, in two contexts of unequal log Z. Under the
    joint model the gap is zero in expectation; leaving log Z out moves each context by its own constant (teeth)."""
    generator = np.random.default_rng(0)
    own, real, own_unnormalised, real_unnormalised = [], [], [], []
    for log_z, own_texts, real_texts in ((0.0, 3000, 1000), (5.0, 1000, 3000)):  # unequal shares of the contexts
        probabilities = generator.dirichlet(np.ones(8))
        for texts, normalised, unnormalised in (
            (own_texts, own, own_unnormalised),
            (real_texts, real, real_unnormalised),
        ):
            drawn = np.log(generator.choice(probabilities, p=probabilities, size=texts))
            normalised.extend(drawn)
            unnormalised.extend(drawn + log_z)
    right, wrong = density_gap(own, real), density_gap(own_unnormalised, real_unnormalised)
    assert wrong.difference > 1.5 > right.difference


def test_curves_are_densities_over_both_groups():
    generator = np.random.default_rng(0)
    gap = density_gap(generator.normal(-50, 3, 200).tolist(), generator.normal(-60, 5, 200).tolist())
    plot = density_plot(gap, model="base model")
    assert [line.name for line in plot.series] == ["real text", "samples of the base model"]
    for line in plot.series:
        assert np.trapezoid(line.y, line.x) == pytest.approx(1.0, abs=0.01)
    assert plot.series[0].x == plot.series[1].x
    assert plot.series[0].x[int(np.argmax(plot.series[0].y))] == pytest.approx(-60, abs=3)


def test_too_little_text():
    with pytest.raises(DataError, match="at least 2 texts a side, came 1 and 2"):
        density_gap([1.0], [1.0, 2.0])
    with pytest.raises(DataError, match="same log-probability"):
        density_plot(density_gap([1.0, 1.0], [1.0, 2.0]), model="m")
