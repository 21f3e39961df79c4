"""WER and BLEU from summed statistics: by hand, and against jiwer and sacrebleu on whole sets."""

import jiwer
import numpy as np
import pytest
import sacrebleu

from energylm.estimators.additive_metrics import Bleu, WordErrorRate, metric_called

REFERENCES = ["the cat sat on the mat", "a b c", "one", "he said so to us all that day"]
HYPOTHESES = ["the cat sat on a mat", "a b c d", "", "he said to us all on that day"]


def test_word_errors_by_hand():
    """cat on (the → a): 1 of 6 · (+ d): 1 of 3 · everything missing: 1 of 1 · (− so, + on): 2 of 8."""
    statistics = WordErrorRate().statistics(REFERENCES, HYPOTHESES)
    assert statistics.tolist() == [[1, 6], [1, 3], [1, 1], [2, 8]]
    assert WordErrorRate().value(statistics.sum(0)) == pytest.approx(100 * 5 / 18)
    assert WordErrorRate().value(statistics).tolist() == pytest.approx([100 / 6, 100 / 3, 100, 25])


def test_sums_give_what_the_libraries_say_of_whole_sets():
    word_errors, bleu = WordErrorRate(), Bleu()
    assert word_errors.value(word_errors.statistics(REFERENCES, HYPOTHESES).sum(0)) == pytest.approx(
        100 * jiwer.wer(REFERENCES, HYPOTHESES)
    )
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert expected > 20
    assert bleu.value(bleu.statistics(REFERENCES, HYPOTHESES).sum(0)) == pytest.approx(expected)
    assert "tok:13a" in bleu.convention


def test_a_mean_of_sentence_values_is_noticed():
    """Teeth: the mean of the rates is another number than the rate of the sums."""
    word_errors = WordErrorRate()
    statistics = word_errors.statistics(REFERENCES, HYPOTHESES)
    assert abs(word_errors.value(statistics).mean() - word_errors.value(statistics.sum(0))) > 10


def test_many_sums_at_once():
    bleu = Bleu()
    statistics = bleu.statistics(REFERENCES, HYPOTHESES)
    sums = np.stack([[statistics[:2].sum(0), statistics.sum(0)]])
    assert bleu.value(sums).shape == (1, 2)
    assert bleu.value(sums)[0, 1] == bleu.value(statistics.sum(0))


def test_nothing_to_measure():
    assert WordErrorRate().statistics([], []).shape == (0, 2) and np.isnan(WordErrorRate().value(np.zeros(2)))
    assert metric_called("wer").lower_is_better and not metric_called("bleu").lower_is_better
