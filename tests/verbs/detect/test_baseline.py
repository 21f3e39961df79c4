"""TF-IDF finds what words give away, has the right sign, and knows nothing where they give nothing away."""

import random

import numpy as np

from energylm.data.detection import LabelledText
from energylm.estimators.discrimination import discrimination
from energylm.verbs.detect.evaluating import tfidf_scores


def texts(seed, *, telling):
    chooser = random.Random(seed)
    words = [f"w{number}" for number in range(60)]
    found = []
    for number in range(120):
        label = "machine" if number % 2 else "human"
        own = words + (["indeed"] * 6 if telling and label == "machine" else [])
        found.append(LabelledText(" ".join(chooser.choices(own, k=60)), label, "s", str(number)))
    return found


def auroc(*, telling):
    train, test = texts(0, telling=telling), texts(1, telling=telling)
    scores = tfidf_scores(train, [text.text for text in test])
    is_machine = np.array([text.label == "machine" for text in test])
    return discrimination(scores[~is_machine], scores[is_machine], resamples=50)


def test_a_telling_word_is_found_and_higher_means_machine():
    found = auroc(telling=True)
    assert found.auroc.value > 0.97 and found.balanced_accuracy.value > 0.9


def test_where_words_tell_nothing_it_is_at_chance():
    """60 + 60 texts: the standard error of AUROC at chance is 0.053."""
    assert abs(auroc(telling=False).auroc.value - 0.5) < 4 * 0.053


def test_it_is_repeatable():
    train, test = texts(0, telling=True), texts(1, telling=True)
    first, second = (tfidf_scores(train, [text.text for text in test]) for _ in range(2))
    assert np.array_equal(first, second)


def test_other_features_stand_beside_words():
    """Words tell nothing here; a column that tells does, one of noise does not."""
    train, test = texts(0, telling=False), texts(1, telling=False)
    is_machine = np.array([text.label == "machine" for text in test])
    for strength, found in ((4.0, True), (0.0, False)):
        columns = tuple(
            np.random.default_rng(seed).normal(size=(len(part), 1))
            + strength * np.array([[text.label == "machine"] for text in part])
            for seed, part in ((0, train), (1, test))
        )
        scores = tfidf_scores(train, [text.text for text in test], columns=columns)
        measured = discrimination(scores[~is_machine], scores[is_machine], resamples=10).auroc.value
        assert measured > 0.97 if found else abs(measured - 0.5) < 4 * 0.053
