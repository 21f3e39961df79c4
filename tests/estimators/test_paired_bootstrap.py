"""Paired bootstrap: exact cases, known coverage, pairing, and the mistakes it must not make."""

import numpy as np
import pytest

from energylm.estimators.additive_metrics import Bleu, CharacterFScore, WordErrorRate, closed_share, paired_bootstrap

WER = WordErrorRate()


def errors(counts, words=10.0):
    return np.stack([np.asarray(counts, float), np.full(len(counts), words)], axis=1)


def compare(first, second, *, resamples=4000, seed=0):
    return paired_bootstrap(errors(first), errors(second), WER, resamples=resamples, seed=seed)


def test_two_texts_by_hand():
    """Errors (1, 1) against (0, 2) of 10 words. A resample draws text A, B or both: the changes are −10 % (AA, ¼),
    +10 % (BB, ¼), 0 (½). "Not better" therefore has probability ¾."""
    found = compare([1, 1], [0, 2])
    assert (found.first.value, found.second.value, found.difference.value) == (10, 10, 0)
    assert found.p_value == pytest.approx(0.75, abs=4 * np.sqrt(0.75 * 0.25 / 4000))
    assert (found.difference.lower, found.difference.upper) == (-10, 10)


def test_always_better_and_never_better():
    assert compare([3, 2, 4], [2, 1, 1]).p_value == pytest.approx(1 / 4001)
    assert compare([2, 1, 1], [3, 2, 4]).p_value == 1.0
    assert compare([2, 1, 1], [2, 1, 1]).p_value == 1.0  # no change is no improvement


def test_higher_is_better_for_bleu():
    bleu = Bleu()
    references = ["the old miller mends a bridge today", "a stranger sells seven lamps to us"] * 3
    poor = [text.replace("a ", "the ") for text in references]
    good, bad = bleu.statistics(references, references), bleu.statistics(references, poor)
    assert paired_bootstrap(bad, good, bleu, resamples=200, seed=0).p_value < 0.01
    assert paired_bootstrap(good, bad, bleu, resamples=200, seed=0).p_value == 1.0


def test_the_error_is_that_of_the_normal_approximation_for_many_texts():
    """For U texts of equal length the change is a mean: its bootstrap deviation is its standard error."""
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 4, 500), generator.integers(0, 4, 500)
    found = compare(first, second)
    change = (second - first) * 10.0
    expected = change.std() / np.sqrt(500)
    half = (found.difference.upper - found.difference.lower) / 2
    assert half == pytest.approx(1.96 * expected, rel=0.05)


def test_unpaired_resampling_is_noticed():
    """Teeth: hard texts are hard for both. Paired, a small steady gain is certain; drawn apart, it drowns."""
    generator = np.random.default_rng(1)
    hard = generator.integers(0, 10, 400)
    better = np.maximum(hard - (generator.random(400) < 0.1), 0)
    assert compare(hard, better).p_value < 0.001
    apart = generator.choice(errors(hard)[:, 0], (2000, 400)).sum(1), generator.choice(better, (2000, 400)).sum(1)
    assert (apart[1] >= apart[0]).mean() > 0.1


def test_the_same_seed_the_same_numbers_whatever_the_chunks(monkeypatch):
    whole = compare([1, 2, 0, 3], [1, 1, 1, 2], resamples=100)
    monkeypatch.setattr("energylm.estimators.additive_metrics._CHUNK_VALUES", 40)
    assert compare([1, 2, 0, 3], [1, 1, 1, 2], resamples=100) == whole
    assert compare([1, 2, 0, 3], [1, 1, 1, 2], resamples=100, seed=1) != whole
    assert whole.to_json()["difference"]["value"] == pytest.approx(-2.5)


def test_the_way_that_is_gone_by_hand():
    """Errors 4 + 2 of the first, 3 + 2 of the second, 1 + 1 of the oracle: 1 of 4. Resampled AA: 1 of 3, BB: 0 of 1."""
    closed = closed_share(errors([4, 2]), errors([3, 2]), errors([1, 1]), WER, resamples=4000, seed=0)
    assert closed.value == pytest.approx(25) and closed.lower == 0 and closed.upper == pytest.approx(100 / 3)
    assert closed_share(errors([1]), errors([1]), errors([1]), WER, resamples=10, seed=0) is None
    back = closed_share(errors([3, 2]), errors([4, 2]), errors([1, 1]), WER, resamples=10, seed=0)
    assert back.value < 0  # teeth: for the worse is below zero


def test_chrf_adds_up_as_sacrebleu_s():
    from sacrebleu.metrics.chrf import CHRF

    references = ["the old miller mends a bridge today", "a stranger sells seven lamps to us"]
    hypotheses = ["the old miller mends bridges", "a stranger sold seven lamps to us today"]
    metric = CharacterFScore()
    statistics = metric.statistics(references, hypotheses)
    assert metric.value(statistics.sum(0)) == pytest.approx(CHRF().corpus_score(hypotheses, [references]).score)
    alone = [
        CHRF().sentence_score(text, [reference]).score for text, reference in zip(hypotheses, references, strict=True)
    ]
    assert metric.worth(statistics).tolist() == pytest.approx(alone)
    assert float(metric.value(statistics.sum(0))) != pytest.approx(sum(alone) / 2)  # no mean of sentences
    assert metric.statistics([], []).shape == (0, 18) and "chrF" in metric.convention
