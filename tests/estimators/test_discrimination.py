"""Discrimination: by hand, against brute force over pairs and thresholds, against scikit-learn, and by simulation."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from energylm.errors import ConfigError, DataError, ModelError
from energylm.estimators.discrimination import Discrimination, Interval, discrimination
from energylm.estimators.false_positive_threshold import false_positive_threshold

CASES = {
    "apart": (0, 40, 60, 1.0),
    "chance": (1, 50, 50, 0.0),
    "few": (2, 3, 5, 0.5),
    "many": (3, 700, 300, 2.0),
}


def scores(name, *, ties):
    """Normal scores; with `ties`, rounded so that equal scores abound within and across the classes."""
    seed, real, machine, distance = CASES[name]
    rng = np.random.default_rng(seed)
    real_N, machine_M = rng.normal(-distance / 2, 1, real), rng.normal(distance / 2, 1, machine)
    return (real_N.round(), machine_M.round()) if ties else (real_N, machine_M)


def test_by_hand():
    """Real −2, −1, 0, 3 and machine −1, 1, 2, 4, 5; threshold 0. Real right: −2, −1 and half of 0: 2.5 of 4; machine
    right: 1, 2, 4, 5 of 5: ½(0.625 + 0.8) = 0.7125. Pairs won by the machine scores: 1.5, 3, 3, 4, 4 of 20: 15.5/20.
    Four real texts show no rate of 5 %, let alone of 1 %."""
    got = discrimination([-2.0, -1.0, 0.0, 3.0], [-1.0, 1.0, 2.0, 4.0, 5.0])
    assert got.balanced_accuracy.value == pytest.approx(0.7125)
    assert got.auroc.value == pytest.approx(15.5 / 20)
    assert got.tpr_at_1 is None and got.tpr_at_5 is None
    assert (got.real, got.machine, got.real_groups, got.machine_groups) == (4, 5, 4, 5)
    # Teeth: a tie that is won outright, or a threshold that lets the highest real score through, gives another number.
    assert got.auroc.value != pytest.approx(16 / 20)


def test_twenty_real_texts_allow_one_false_positive_at_five_percent():
    """Of real scores 0 … 19 one may lie above the threshold, 18: machine 18.5 and 25 are found, 18 and 5 are not. Of
    100 real texts one may lie above at 1 %: the threshold is 98."""
    got = discrimination(np.arange(20.0), [18.5, 25.0, 18.0, 5.0])
    assert got.tpr_at_5.value == pytest.approx(2 / 4) and got.tpr_at_1 is None
    assert discrimination(np.arange(100.0), [98.5, 25.0, 99.5, 98.0]).tpr_at_1.value == pytest.approx(2 / 4)


def test_a_rate_is_given_only_where_the_number_of_real_texts_shows_it():
    """From 99 texts on for 1 %, from 19 on for 5 %: exactly where a threshold with that promise exists. Blocks of one
    text are no further texts. The mistake it stands for: 30 texts, whose highest score a new text exceeds with
    probability 1/31 > 1 %, printed as "TPR at 1 %"."""
    for texts in (18, 19, 30, 98, 99):
        got = discrimination(np.arange(float(texts)), [200.0], resamples=2)
        for rate, found in ((0.01, got.tpr_at_1), (0.05, got.tpr_at_5)):
            assert (found is not None) == (1 / (texts + 1) <= rate)
            if found is None:
                with pytest.raises(DataError, match="too few human texts"):
                    false_positive_threshold(np.arange(float(texts)), rate)
    blocks = discrimination(np.arange(300.0), [1.0], real_groups=np.arange(300) // 10, resamples=2)
    assert blocks.real == 300 and blocks.tpr_at_1 is None and blocks.to_json()["tpr_at_1"] is None


def shown_rates(got, real_N):
    """(rate, TPR) of the rates that so many real texts show; "many" has both, "apart" and "chance" 5 %."""
    return [(rate, tpr) for rate, tpr in ((0.01, got.tpr_at_1), (0.05, got.tpr_at_5)) if 1 / (len(real_N) + 1) <= rate]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_brute_force(name, ties):
    real_N, machine_M = scores(name, ties=ties)
    got = discrimination(real_N, machine_M, resamples=2)
    pairs = [(m > r) + 0.5 * (m == r) for m in machine_M for r in real_N]
    assert got.auroc.value == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    right = [np.mean((real_N < 0) + 0.5 * (real_N == 0)), np.mean((machine_M > 0) + 0.5 * (machine_M == 0))]
    assert got.balanced_accuracy.value == pytest.approx(sum(right) / 2, abs=1e-12)
    for rate, found in shown_rates(got, real_N):
        allowed = [np.mean(machine_M > t) for t in real_N if np.mean(real_N > t) <= rate]
        assert found.value == pytest.approx(max(allowed), abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_scikit_learn(name, ties):
    """scikit-learn knows no half points at the threshold: it is moved off the scores there."""
    real_N, machine_M = scores(name, ties=ties)
    label, score = np.r_[np.zeros(len(real_N)), np.ones(len(machine_M))], np.r_[real_N, machine_M]
    got = discrimination(real_N, machine_M, threshold=0.25, resamples=2)
    assert got.auroc.value == pytest.approx(roc_auc_score(label, score), abs=1e-12)
    assert got.balanced_accuracy.value == pytest.approx(balanced_accuracy_score(label, score > 0.25), abs=1e-12)
    false, true, _ = roc_curve(label, score, drop_intermediate=False)
    for rate, found in shown_rates(got, real_N):
        # The curve's points lie at scores of either class; where it is below `rate`, no real score has been passed.
        assert found.value == pytest.approx(true[false <= rate].max(), abs=1e-12)


def test_intervals_equal_a_plain_loop_over_resampled_texts():
    """Another route with other random numbers: build every resample, sort it, measure it. 4,000 resamples place an
    end of the interval to about 0.002 here; 0.012 is far outside that error."""
    real_N, machine_M = scores("apart", ties=False)
    real_group, machine_group = np.arange(len(real_N)) // 4, 100 + np.arange(len(machine_M)) // 5
    got = discrimination(real_N, machine_M, real_groups=real_group, machine_groups=machine_group, resamples=4000)
    rng, found = np.random.default_rng(9), []
    for _ in range(4000):
        real = np.concatenate([real_N[real_group == g] for g in rng.integers(0, 10, 10)])
        machine = np.concatenate([machine_M[machine_group == 100 + g] for g in rng.integers(0, 12, 12)])
        rank = (machine[:, None] > real).mean()
        found.append([((real < 0).mean() + (machine > 0).mean()) / 2, rank])
    for interval, column in zip((got.balanced_accuracy, got.auroc), np.array(found).T, strict=True):
        assert interval.lower == pytest.approx(np.quantile(column, 0.025), abs=0.012)
        assert interval.upper == pytest.approx(np.quantile(column, 0.975), abs=0.012)
    assert (got.real_groups, got.machine_groups) == (10, 12)


def test_intervals_cover_the_truth():
    """Texts of 5 alike blocks, truth AUROC = Φ(1/√2) with blocks of both classes sharing no text. 300 data sets:
    a percentile interval from 60 texts covers 95 % up to a small bias; below 88 % (or 264) it would be wrong, which a
    coverage of 93 % fails with probability 0.001. By block it covers far less."""
    truth = 0.5 * (1 + math.erf(1 / 2))
    rng = np.random.default_rng(4)
    by_text = by_block = 0
    for _ in range(300):
        real, machine = (np.repeat(rng.normal(mean, 1, 60), 5) for mean in (0.0, 1.0))
        text = np.repeat(np.arange(60), 5)
        honest = discrimination(real, machine, real_groups=text, machine_groups=text + 60, resamples=300).auroc
        naive = discrimination(real, machine, resamples=300).auroc
        by_text += honest.lower <= truth <= honest.upper
        by_block += naive.lower <= truth <= naive.upper
    assert by_text >= 264
    assert by_block < 220  # teeth: a bootstrap by block is far too sure


def test_contexts_that_both_classes_share_are_drawn_together():
    """Scores that follow the context (real = c − ½, machine = c + ½): the pair is drawn at once, so accuracy at a fixed
    threshold moves less than with classes drawn apart: errors of the classes cancel."""
    context = np.random.default_rng(0).normal(0, 2, 200)
    names = np.arange(200)
    paired = discrimination(context - 0.5, context + 0.5, real_groups=names, machine_groups=names)
    apart = discrimination(context - 0.5, context + 0.5)
    width = [one.balanced_accuracy.upper - one.balanced_accuracy.lower for one in (paired, apart)]
    assert width[0] < 0.7 * width[1]
    assert paired.balanced_accuracy.value == apart.balanced_accuracy.value


def test_resamples_in_pieces_are_resamples(monkeypatch):
    """However few fit into memory, the same kind of interval comes out; the seed names it."""
    real_N, machine_M = scores("many", ties=True)
    whole = discrimination(real_N, machine_M, resamples=200)
    assert discrimination(real_N, machine_M, resamples=200) == whole
    assert discrimination(real_N, machine_M, resamples=200, seed=1) != whole
    monkeypatch.setattr("energylm.estimators.discrimination._CHUNK_VALUES", 7 * 700)
    pieces = discrimination(real_N, machine_M, resamples=200)
    assert pieces.auroc.value == whole.auroc.value
    assert pieces.auroc.lower == pytest.approx(whole.auroc.lower, abs=0.01)


def test_a_score_that_knows_nothing_is_at_chance():
    got = discrimination(np.zeros(19), np.zeros(20))
    assert got.balanced_accuracy == got.auroc == Interval(0.5, 0.5, 0.5)
    assert got.tpr_at_5 == Interval(0.0, 0.0, 0.0)


def test_takes_tensors_lists_and_infinite_scores():
    got = discrimination(torch.tensor([-math.inf, 0.0]), [1.0, math.inf], real_groups=["a", "b"])
    assert got.auroc.value == 1.0
    values = json.loads(json.dumps(got.to_json()))
    assert [values["auroc"][name] for name in ("value", "lower", "upper")] == [1.0] * 3 and values["real"] == 2
    assert Discrimination.from_json(values) == got
    accuracy = Interval(0.8125, 0.75, 0.875).to_json()
    assert (accuracy["ends"], accuracy["percent"], accuracy["percent_ends"]) == ("0.750–0.875", 81.25, "75.0–87.5")
    assert str(got.auroc) == "1.000 [1.000, 1.000]"


def test_mistakes_are_named():
    with pytest.raises(DataError, match="one class only: there is no score of machine text"):
        discrimination([1.0], [])
    with pytest.raises(DataError, match="one class only: there is no score of real text"):
        discrimination([], [1.0])
    with pytest.raises(ModelError, match="not a number"):
        discrimination([1.0], [math.nan])
    with pytest.raises(DataError, match="came shape"):
        discrimination(np.zeros((2, 2)), [1.0])
    with pytest.raises(DataError, match="name one a score"):
        discrimination([1.0, 2.0], [1.0], real_groups=[1])
    with pytest.raises(ConfigError, match="at least 1 resample"):
        discrimination([1.0], [1.0], resamples=0)
