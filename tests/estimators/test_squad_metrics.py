"""Exact match and F1 of SQuAD from their published definition, by hand."""

import numpy as np
import pytest

from energylm.estimators.task_metrics import (
    Answered,
    answer_f1,
    by_answerability,
    exact_match,
    normalised_answer,
    squad_metrics,
)


def test_normalising_by_hand():
    assert normalised_answer("The  U.S. Navy, an' a boat!") == "us navy boat"
    assert normalised_answer("theatre") == "theatre"  # articles are whole words
    assert normalised_answer("A.") == ""  # punctuation goes first


@pytest.mark.parametrize(
    ("predicted", "gold", "exact", "overlap"),
    [
        ("the old mill", ["old mill"], 1, 1),
        ("old mill house", ["old mill"], 0, 2 * 2 / (3 + 2)),
        ("old old mill", ["old mill"], 0, 2 * 2 / (3 + 2)),  # a word counts as often as the other side has it
        ("mill", ["a house", "the mill"], 1, 1),  # the best over gold answers
        ("nothing", ["old mill"], 0, 0),
        ("", [], 1, 1),
        ("mill", [], 0, 0),
        ("", ["mill"], 0, 0),
    ],
)
def test_one_answer_by_hand(predicted, gold, exact, overlap):
    assert exact_match(predicted, gold) == exact
    assert answer_f1(predicted, gold) == pytest.approx(overlap)


ANSWERS = [
    Answered("mill", ["mill"], -2.0),
    Answered("boat", [], -1.0),  # wrong unless the threshold silences it
    Answered("old boat", ["boat"], 0.5),
    Answered("lamp", [], 3.0),
]


def test_a_threshold_silences_predictions():
    """At 0 the last two are silent: exact 1, 0, 0, 1. F1 the same. Silencing from −1 on gives 1, 1, 0, 1."""
    found = squad_metrics(ANSWERS, threshold=0.0)
    assert found["exact_match"] == 50 and found["f1"] == 50
    assert found["best_exact_match"] == 75
    assert found["best_f1"] == pytest.approx(75)
    assert squad_metrics(ANSWERS) == {"exact_match": 25.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 4)}
    parts = by_answerability(ANSWERS, threshold=0.0)
    assert parts["with answer"]["exact_match"] == 50 and parts["without answer"]["exact_match"] == 50


def test_the_best_threshold_is_the_best_of_all_thresholds():
    generator = np.random.default_rng(1)
    answers = [
        Answered(("mill", "boat")[generator.integers(2)], (["mill"], [])[generator.integers(2)], odds)
        for odds in generator.integers(-3, 4, 60).astype(float)  # many equal odds: they are silenced together
    ]
    tried = [squad_metrics(answers, threshold=threshold)["exact_match"] for threshold in np.arange(-4.5, 5)]
    assert squad_metrics(answers, threshold=0.0)["best_exact_match"] == pytest.approx(max(tried))
    assert len(set(tried)) > 3
