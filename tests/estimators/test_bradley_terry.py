"""Bradley–Terry strengths: the case of two by hand, the score equations, the information, recovery from samples."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from energylm.errors import DataError
from energylm.estimators.pairwise_preference import bradley_terry, rate

WINS = np.array([[0, 30, 12.5], [18, 0, 20], [7.5, 25, 0]])


def log_likelihood(strength, wins):
    odds = strength[None, :] - strength[:, None]
    return -(wins * np.log1p(np.exp(odds))).sum()


def test_two_models_are_a_logit():
    """With two models s_2 − s_1 = log(W/L), with variance 1/W + 1/L."""
    found = bradley_terry([[0, 40], [60, 0]])
    difference = found.difference(0, 1)
    assert difference.value == pytest.approx(math.log(60 / 40), abs=1e-10)
    reach = 1.959963984540054 * math.sqrt(1 / 60 + 1 / 40)
    assert difference.upper - difference.value == pytest.approx(reach, rel=1e-9)
    assert 1 / (1 + math.exp(-difference.value)) == pytest.approx(rate(60, 100).interval.value)


def test_expected_wins_equal_wins():
    """The score equations: every model wins as often as its strength says. Strengths sum to nothing."""
    strength = np.array(bradley_terry(WINS).strength_M)
    chance = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
    games = WINS + WINS.T
    assert np.allclose((games * chance).sum(1), WINS.sum(1), atol=1e-9)
    assert abs(strength.sum()) < 1e-12
    assert not np.allclose((games * chance.T).sum(1), WINS.sum(1), atol=1.0)  # rows for columns would be seen


def test_it_is_the_maximum_that_a_general_optimiser_finds():
    best = minimize(lambda s: -log_likelihood(s - s.mean(), WINS), np.zeros(3), method="BFGS")
    assert np.allclose(bradley_terry(WINS).strength_M, best.x - best.x.mean(), atol=1e-4)


def test_covariance_is_the_inverse_of_the_information():
    """Twice differentiated by finite differences, on the space Σ s = 0."""
    found = bradley_terry(WINS)
    strength, step = np.array(found.strength_M), 1e-4
    hessian = np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            moves = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
            values = [
                a * b * log_likelihood(strength + step * (a * np.eye(3)[i] + b * np.eye(3)[j]), WINS) for a, b in moves
            ]
            hessian[i, j] = sum(values) / (4 * step**2)
    assert np.allclose(np.linalg.pinv(-hessian, rcond=1e-5), found.covariance_MM, atol=1e-4)


def test_intervals_cover_planted_strengths():
    """120 studies of 3 models with 150 pairs a comparison: 95 % intervals of s_3 − s_1 cover in 108 to 119 or more.
    Fewer than 106 would happen once in 2,000 studies of studies."""
    planted, random = np.array([-0.4, 0.1, 0.3]), np.random.default_rng(0)
    covered = 0
    for _ in range(120):
        wins = np.zeros((3, 3))
        for i in range(3):
            for j in range(i):
                won = random.binomial(150, 1 / (1 + math.exp(planted[j] - planted[i])))
                wins[i, j], wins[j, i] = won, 150 - won
        interval = bradley_terry(wins).difference(0, 2)
        covered += interval.lower <= planted[2] - planted[0] <= interval.upper
    assert covered >= 106


def test_no_finite_fit_is_said_and_not_invented():
    assert bradley_terry([[0, 5], [0, 0]]) is None  # one never lost
    assert bradley_terry([[0, 3, 0], [2, 0, 0], [0, 0, 0]]) is None  # one was never compared
    cycle = bradley_terry([[0, 5, 0], [0, 0, 5], [5, 0, 0]])  # everyone lost to somebody
    assert np.allclose(cycle.strength_M, 0, atol=1e-9)


def test_lopsided_wins_converge():
    found = bradley_terry([[0, 1, 1], [999, 0, 1], [999, 999, 0]])
    assert np.all(np.isfinite(found.strength_M)) and found.strength_M[2] > found.strength_M[1] > found.strength_M[0]


@pytest.mark.parametrize("wins", [[[0, 1]], [[1, 1], [1, 0]], [[0, -1], [1, 0]], [[0]]])
def test_what_is_no_table_of_wins(wins):
    with pytest.raises(DataError, match="square table"):
        bradley_terry(wins)
