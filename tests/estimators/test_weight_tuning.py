"""λ by hand and by brute force over every list, ties, missing hypotheses, and what is refused."""

from itertools import product

import numpy as np
import pytest

from energylm.errors import ConfigError, DataError
from energylm.estimators.additive_metrics import WordErrorRate, metric_called
from energylm.estimators.weight_tuning import ListScores, line_choices, search_weights, smooth_weights, tune_weights

WER = WordErrorRate()
GRID = tuple(round(0.05 * number, 10) for number in range(1, 21))


def random_lists(seed, *, scorers, lists=40, hypotheses=6):
    generator = np.random.default_rng(seed)
    errors = generator.integers(0, 6, (lists, hypotheses)).astype(float)
    scores = ListScores(
        base_UH=generator.normal(0, 2, (lists, hypotheses)),
        scores_SUH=generator.normal(0, 4, (scorers, lists, hypotheses)) - 1.5 * errors,
        length_UH=np.ones((lists, hypotheses)),
    )
    return scores, np.stack([errors, np.full(errors.shape, 10.0)], axis=-1)


def brute_force(scores, statistics, weights):
    """The rate, by loops over lists and hypotheses."""
    errors = words = 0.0
    for row in range(len(scores.base_UH)):
        best, found = -np.inf, 0
        for place in range(scores.base_UH.shape[1]):
            total = scores.base_UH[row, place]
            for weight, table in zip(weights, scores.scores_SUH, strict=True):
                total += weight * table[row, place]
            if total > best:
                best, found = total, place
        errors, words = errors + statistics[row, found, 0], words + statistics[row, found, 1]
    return 100 * errors / words


def test_choices_by_hand():
    """f = (−1, −2), score = (−10, −6): at λ = 0.2 the totals are −3 and −3.2, at λ = 0.3 they are −4 and −3.8."""
    scores = ListScores(np.array([[-1.0, -2.0]]), np.array([[[-10.0, -6.0]]]), np.ones((1, 2)))
    assert scores.choose([0.2])[0].tolist() == [0] and scores.choose([0.3])[0].tolist() == [1]
    assert scores.totals([0.3])[0].tolist() == pytest.approx([-4, -3.8])


def test_length_normalisation_by_hand():
    """Totals −4 and −6 over 2 and 4 words: −2 and −1.5, so the longer one wins."""
    scores = ListScores(np.array([[-4.0, -6.0]]), np.zeros((1, 1, 2)), np.array([[2.0, 4.0]]))
    assert scores.choose([1.0])[0].tolist() == [1]
    assert ListScores(scores.base_UH, scores.scores_SUH, np.ones((1, 2))).choose([1.0])[0].tolist() == [0]


@pytest.mark.parametrize("seed", range(3))
def test_one_scorer_against_brute_force(seed):
    scores, statistics = random_lists(seed, scorers=1)
    tuning = tune_weights(scores, statistics, WER, grid=GRID)
    rates = [brute_force(scores, statistics, [weight]) for weight in GRID]
    assert tuning.values == pytest.approx(rates) and tuning.tried == tuple((weight,) for weight in GRID)
    assert tuning.value == pytest.approx(min(rates))
    assert tuning.weights == (GRID[int(np.argmin(rates))],)  # the smallest of the best
    assert len(set(tuning.values)) > 3


def test_two_scorers_against_brute_force():
    scores, statistics = random_lists(5, scorers=2, lists=20)
    grid = (0.1, 0.4, 0.7)
    tuning = tune_weights(scores, statistics, WER, grid=grid)
    tried = [pair for pair in product((0.0, *grid), repeat=2) if any(pair)]
    rates = {pair: brute_force(scores, statistics, pair) for pair in tried}
    assert dict(zip(tuning.tried, tuning.values, strict=True)) == pytest.approx(rates)
    assert tuning.value == pytest.approx(min(rates.values()))
    assert sum(tuning.weights) == pytest.approx(min(sum(pair) for pair in tried if rates[pair] <= tuning.value + 1e-9))


def test_a_metric_that_should_rise_is_maximised():
    class Right(WordErrorRate):
        lower_is_better = False

    scores, statistics = random_lists(1, scorers=1)
    assert tune_weights(scores, statistics, Right(), grid=GRID).value == max(
        tune_weights(scores, statistics, WER, grid=GRID).values
    )


def test_ties_stay_in_the_recognisers_order_and_are_told():
    scores = ListScores(np.array([[-1.0, -1.0], [-1.0, -2.0]]), np.zeros((1, 2, 2)), np.ones((2, 2)))
    chosen, tied = scores.choose([0.5])
    assert chosen.tolist() == [0, 0] and tied.tolist() == [True, False]


def test_what_is_missing_is_never_chosen():
    """A score of 0, which an empty hypothesis would have, beats every text: f = −inf keeps it out at any λ."""
    scores = ListScores(np.array([[-9.0, -np.inf]]), np.array([[[-30.0, 0.0]]]), np.ones((1, 2)))
    chosen, tied = scores.choose([1.0])
    assert chosen.tolist() == [0] and tied.tolist() == [False]
    nothing = ListScores(np.full((1, 2), -np.inf), np.zeros((1, 1, 2)), np.ones((1, 2)))
    assert nothing.choose([1.0])[0].tolist() == [0] and not nothing.choose([1.0])[1].any()


def test_a_weight_of_zero_ignores_its_scorer_whatever_that_says():
    """f = (−1, −2), the first scorer says (−inf, −6): at λ = (0, 1) the totals are f + (−3, −1) = (−4, −3)."""
    impossible = np.array([[[-np.inf, -6.0]], [[-3.0, -1.0]]])
    scores = ListScores(np.array([[-1.0, -2.0]]), impossible, np.ones((1, 2)))
    assert scores.totals([0.0, 1.0]).tolist() == [[-4.0, -3.0]]
    assert scores.totals([0.0, 0.0]).tolist() == [[-1.0, -2.0]] and scores.choose([0.0, 0.0])[0].tolist() == [0]
    assert scores.totals([0.5, 1.0]).tolist() == [[-np.inf, -6.0]]
    with np.errstate(invalid="ignore"):  # teeth: the plain product is NaN, and NaN is numpy's greatest number
        plain = scores.base_UH + np.tensordot([0.0, 1.0], impossible, axes=1)
    assert np.isnan(plain[0, 0]) and plain.argmax(1).tolist() == [0] != scores.choose([0.0, 1.0])[0].tolist()


def test_tuning_with_an_impossible_hypothesis_against_brute_force():
    """Two lists whose right hypothesis is the second; the first scorer rules one of their first ones out."""
    scores = ListScores(
        np.array([[-1.0, -2.0]] * 2), np.array([[[-np.inf, -6.0], [-4.0, -3.0]], [[-3.0, -1.0]] * 2]), np.ones((2, 2))
    )
    statistics = np.array([[[1.0, 5.0], [0.0, 5.0]]] * 2)
    tuning = tune_weights(scores, statistics, WER, grid=(0.25, 1.0))
    by_hand = {  # totals of the second list: f + λ₁·(−4, −3) + λ₂·(−3, −1); of the first: λ₁ > 0 decides alone
        (0.0, 0.25): 20.0, (0.0, 1.0): 0.0, (0.25, 0.0): 10.0, (0.25, 0.25): 10.0, (0.25, 1.0): 0.0,
        (1.0, 0.0): 10.0, (1.0, 0.25): 0.0, (1.0, 1.0): 0.0,
    }  # fmt: skip
    assert dict(zip(tuning.tried, tuning.values, strict=True)) == by_hand
    assert tuning.weights == (0.0, 1.0)


@pytest.mark.filterwarnings("error")
def test_sums_without_a_value_are_never_chosen():
    """−inf from one scorer and +inf from another have no sum; what is not there stays out even against λ < 0."""
    scores = ListScores(np.array([[-1.0, -9.0]]), np.array([[[-np.inf, -1.0]], [[np.inf, -1.0]]]), np.ones((1, 2)))
    assert scores.totals([1.0, 1.0]).tolist() == [[-np.inf, -11.0]] and scores.choose([1.0, 1.0])[0].tolist() == [1]
    absent = ListScores(np.array([[-np.inf, -9.0]]), np.array([[[-np.inf, -1.0]]]), np.ones((1, 2)))
    assert absent.totals([-1.0]).tolist() == [[-np.inf, -8.0]] and absent.order([-1.0]).tolist() == [[1, 0]]


def test_an_impossible_hypothesis_goes_before_one_that_is_not_there():
    """Places 0 and 3 are not there, 1 and 2 have a total of −inf."""
    scores = ListScores(
        np.array([[-np.inf, -1.0, -2.0, -np.inf]]), np.array([[[0.0, -np.inf, -np.inf, 0.0]]]), np.ones((1, 4))
    )
    chosen, tied = scores.choose([0.5])
    assert chosen.tolist() == [1] and tied.tolist() == [False] and scores.order([0.5]).tolist() == [[1, 2, 0, 3]]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_begins_with_the_choice_and_descends(seed):
    scores, _ = random_lists(seed, scorers=2)
    order, total = scores.order([0.3, 0.0]), scores.totals([0.3, 0.0])
    assert (order[:, 0] == scores.choose([0.3, 0.0])[0]).all()
    assert (np.diff(np.take_along_axis(total, order, axis=1), axis=1) <= 0).all()


def test_the_edge_of_the_grid_is_told():
    """The two lists of `test_choices_by_hand`, whose second hypothesis is right and chosen from λ = 0.25 on."""
    scores = ListScores(np.array([[-1.0, -2.0]] * 2), np.array([[[-10.0, -6.0]] * 2]), np.ones((2, 2)))
    statistics = np.array([[[1.0, 5.0], [0.0, 5.0]]] * 2)
    assert tune_weights(scores, statistics, WER, grid=(0.2, 0.3)).on_the_edge
    inner = tune_weights(scores, statistics, WER, grid=(0.2, 0.3, 0.4))
    assert inner.weights == (0.3,) and inner.value == 0 and not inner.on_the_edge


def test_one_list_is_refused_and_too_many_combinations():
    scores, statistics = random_lists(0, scorers=1, lists=1)
    with pytest.raises(DataError, match="cannot be tuned on 1 list:"):
        tune_weights(scores, statistics, WER, grid=GRID)
    scores, statistics = random_lists(0, scorers=4)
    with pytest.raises(ConfigError, match="21 values of λ for each of 4 scorers make 194,481"):
        tune_weights(scores, statistics, WER, grid=GRID)


@pytest.mark.parametrize("seed", range(3))
def test_choices_along_a_line_against_brute_force(seed):
    """Between any two neighbouring bends, every list chooses what the argmax at the middle chooses."""
    scores, _ = random_lists(seed, scorers=2, lists=12)
    scores.base_UH[3, 4:] = -np.inf  # a shorter list
    weights = np.array([0.4, 0.1])
    first, bends, lists, starts, ends = line_choices(scores, weights, 1)
    cuts = np.unique(bends)
    middles = [cuts[0] - 1, *((cuts[1:] + cuts[:-1]) / 2), cuts[-1] + 1]
    for middle in middles:
        chosen = first.copy()
        for event in bends.argsort(kind="stable"):
            if bends[event] < middle:
                assert chosen[lists[event]] == starts[event]
                chosen[lists[event]] = ends[event]
        assert chosen.tolist() == scores.choose([0.4, middle])[0].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_one_weight_is_searched_exactly(seed):
    """No λ of a grid a hundred times finer is better, and a coarse grid is worse on one of the seeds at least."""
    scores, statistics = random_lists(seed, scorers=1)
    found = search_weights(scores, statistics, WER)
    fine = np.linspace(-3, 3, 6001)
    rates = [brute_force(scores, statistics, [weight]) for weight in fine[::10]]
    assert found.value <= min(rates) + 1e-9
    assert brute_force(scores, statistics, found.weights) == pytest.approx(found.value)


def test_several_weights_of_either_sign():
    """The first scorer says the errors with the wrong sign, the second nothing: λ₁ < 0, and no grid finds it."""
    scores, statistics = random_lists(5, scorers=2, lists=200)
    wrong = ListScores(scores.base_UH, -scores.scores_SUH, scores.length_UH)
    found = search_weights(wrong, statistics, WER)
    assert found.weights[0] < 0 and found.value < tune_weights(wrong, statistics, WER, grid=GRID[::5]).value
    assert brute_force(wrong, statistics, found.weights) == pytest.approx(found.value)
    zero = brute_force(wrong, statistics, [0, 0])
    assert found.value < zero


def test_a_scorer_of_noise_may_get_zero():
    """λ = 0 is one of the grid where the grid has it."""
    scores, statistics = random_lists(1, scorers=1)
    harmful = ListScores(-10 * statistics[..., 0], -scores.scores_SUH, scores.length_UH)
    assert tune_weights(harmful, statistics, WER, grid=(0.0, *GRID)).weights == (0.0,)
    assert tune_weights(harmful, statistics, WER, grid=GRID).weights == (0.05,)


def expected_errors(scores, statistics, weights):
    """Of a choice by exp(total), by loops."""
    expected = 0.0
    for row in range(len(scores.base_UH)):
        real = np.isfinite(scores.base_UH[row]) & np.isfinite(scores.scores_SUH[:, row]).all(0)
        totals = (scores.base_UH[row, real] + weights @ scores.scores_SUH[:, row, real]) / scores.length_UH[row, real]
        odds = np.exp(totals - totals.max())
        expected += (odds / odds.sum()) @ statistics[row, real, 0]
    return expected


@pytest.mark.parametrize("seed", range(3))
def test_smooth_weights_have_the_least_expected_cost(seed):
    """Nothing around them, nor anywhere on a coarse grid, is better by loops over lists and hypotheses; what is not
    there and what is impossible stay out. Teeth: the best λ of the metric itself are not these."""
    scores, statistics = random_lists(seed, scorers=2, lists=200)
    scores.base_UH[:] -= statistics[..., 0]  # a recogniser that is worth nothing would want λ at infinity
    scores.base_UH[3, 4:] = -np.inf
    scores.scores_SUH[1, 5, 2] = -np.inf
    scores.length_UH[:] = np.random.default_rng(seed).integers(1, 4, scores.length_UH.shape)
    tuning = smooth_weights(scores, statistics, WER)
    found = np.array(tuning.weights)
    least = expected_errors(scores, statistics, found)
    steps = [np.array(step) for step in product((-0.02, 0.0, 0.02), repeat=2) if any(step)]
    assert all(expected_errors(scores, statistics, found + step) > least for step in steps)
    coarse = [
        expected_errors(scores, statistics, np.array(point)) for point in product(np.linspace(-1, 2, 13), repeat=2)
    ]
    assert least <= min(coarse) + 1e-6
    exact = search_weights(scores, statistics, WER)
    assert exact.value <= tuning.value and expected_errors(scores, statistics, np.array(exact.weights)) > least
    assert tuning.value == pytest.approx(WER.value(statistics[np.arange(200), scores.choose(found)[0]].sum(0)[None])[0])


def test_smooth_weights_go_up_where_more_is_better():
    """BLEU: the hypothesis that equals its reference has the higher score of the scorer; teeth: the other way round the
    λ is negative."""
    metric = metric_called("bleu")
    references, others = ["the boats lie in the bay", "a clerk counts the letters"], ["no", "none at all"]
    statistics = np.stack([metric.statistics(references, texts) for texts in (others, references)], axis=1)
    for sign in (1, -1):
        scores = ListScores(np.zeros((2, 2)), sign * np.array([[[-3.0, -1.0], [-2.0, -1.0]]]), np.ones((2, 2)))
        tuning = smooth_weights(scores, statistics, metric)
        assert sign * tuning.weights[0] > 0.5 and tuning.value == pytest.approx(100)
