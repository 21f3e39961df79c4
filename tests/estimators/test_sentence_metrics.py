"""GLUE's metrics by hand and against scikit-learn and scipy; degenerate predictions; medians over seeds."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from energylm.estimators.task_metrics import METRICS, SeedMedian

GENERATOR = np.random.default_rng(0)
GOLD, TOLD = (GENERATOR.integers(0, 2, 200).astype(float) for _ in range(2))
THREE_GOLD, THREE_TOLD = (GENERATOR.integers(0, 3, 300).astype(float) for _ in range(2))
SCORES = GENERATOR.integers(0, 26, 100) / 5  # many ties, as STS has
GUESSED = SCORES + GENERATOR.normal(0, 2, 100)


def test_by_hand():
    """Gold 1 1 1 0 0, told 1 1 0 0 1: TP 2, FN 1, TN 1, FP 1.

    accuracy 3/5; F1 = 4/6; MCC = (2·1 − 1·1) / √(3·3·2·2) = 1/6. Ranks of (1, 2, 3) and (1, 3, 2): 1 − 6·2/(3·8) = ½.
    """
    gold, told = np.array([1.0, 1, 1, 0, 0]), np.array([1.0, 1, 0, 0, 1])
    assert METRICS["accuracy"](gold, told) == pytest.approx(60)
    assert METRICS["f1"](gold, told) == pytest.approx(200 / 3)
    assert METRICS["mcc"](gold, told) == pytest.approx(100 / 6)
    assert METRICS["spearman"](np.array([1.0, 2, 3]), np.array([10.0, 300, 20])) == pytest.approx(50)


def test_against_the_libraries_that_the_paper_used():
    assert METRICS["mcc"](GOLD, TOLD) == pytest.approx(100 * matthews_corrcoef(GOLD, TOLD))
    assert METRICS["mcc"](THREE_GOLD, THREE_TOLD) == pytest.approx(100 * matthews_corrcoef(THREE_GOLD, THREE_TOLD))
    assert METRICS["f1"](GOLD, TOLD) == pytest.approx(100 * f1_score(GOLD, TOLD))
    assert METRICS["spearman"](SCORES, GUESSED) == pytest.approx(100 * spearmanr(SCORES, GUESSED).statistic)
    assert METRICS["spearman"](GUESSED, np.round(SCORES)) == pytest.approx(
        100 * spearmanr(GUESSED, np.round(SCORES)).statistic
    )
    assert METRICS["pearson"](SCORES, GUESSED) == pytest.approx(100 * pearsonr(SCORES, GUESSED).statistic)


def test_the_comparison_has_teeth():
    """Ranks without shared ties, or F1 of the other class, are other numbers."""
    from energylm.estimators.task_metrics import pearson_correlation

    untied = pearson_correlation(
        np.argsort(np.argsort(SCORES)).astype(float), np.argsort(np.argsort(GUESSED)).astype(float)
    )
    assert untied != pytest.approx(100 * spearmanr(SCORES, GUESSED).statistic, abs=1e-3)
    assert METRICS["f1"](1 - GOLD, 1 - TOLD) != pytest.approx(100 * f1_score(GOLD, TOLD), abs=1e-3)


def test_a_constant_prediction_has_found_nothing():
    constant = np.ones_like(GOLD)
    assert METRICS["mcc"](GOLD, constant) == 0 == matthews_corrcoef(GOLD, constant)
    assert METRICS["spearman"](SCORES, np.ones_like(SCORES)) == 0
    assert METRICS["f1"](GOLD, np.zeros_like(GOLD)) == 0 and METRICS["f1"](np.zeros(3), np.zeros(3)) == 0


def test_median_and_spread():
    found = SeedMedian.of([61.0, 58.0, 70.0])
    assert (found.value, found.lowest, found.highest, found.index) == (61, 58, 70, 0)
    assert found.deviation == pytest.approx(np.std([61, 58, 70], ddof=1))
    even = SeedMedian.of([4.0, 1.0, 2.0, 3.0])
    assert even.value == 2.5 and even.values[even.index] == 2  # the lower of the two in the middle
    assert SeedMedian.of([5.0]).deviation is None
