"""Scores of tags, entities and translations, by hand."""

import pytest

from energylm.estimators.sequence_scores import entity_scores, tag_scores, translation_scores


def test_entities_by_hand():
    """Gold: PER(0), LOC(2-3). Found: PER(0), LOC(2) cut short. One of two right, one of two found: F1 50.
    Types: PER 100, LOC 0, macro 50. Tags: 3 of 4 right."""
    scores = entity_scores([["B-PER", "O", "B-LOC", "I-LOC"]], [["B-PER", "O", "B-LOC", "O"]])
    assert (scores.f1, scores.precision, scores.recall, scores.macro_f1) == (50, 50, 50, 50)
    assert scores.f1_of_types == {"LOC": 0, "PER": 100} and scores.accuracy == 75 and scores.quality == 50
    assert "F1 PER" in scores.table.columns


def test_nothing_found_is_zero_without_a_warning():
    scores = entity_scores([["B-PER", "O"]], [["O", "O"]])
    assert (scores.f1, scores.precision, scores.recall, scores.accuracy) == (0, 0, 0, 50)


def test_accuracy_counts_words_not_sentences():
    scores = tag_scores([["a"], ["a", "b", "c"]], [["x"], ["a", "b", "c"]])
    assert scores.accuracy == scores.quality == 75 and (scores.sentences, scores.words) == (2, 4)
    with pytest.raises(ValueError, match="zip"):
        tag_scores([["a", "b"]], [["a"]])


def test_translations_by_hand():
    """The same text: 100. Four of eight words, each n-gram right: a brevity penalty of exp(1 − 8/4)."""
    reference = "one two three four five six seven eight"
    assert translation_scores(["x"], [reference], [reference]).bleu == pytest.approx(100)
    short = translation_scores(["x"], [reference], ["one two three four"])
    assert short.precisions == pytest.approx(dict.fromkeys(("n1", "n2", "n3", "n4"), 100)) and short.length_ratio == 0.5
    assert short.precisions_text == "100.0/100.0/100.0/100.0"
    assert short.bleu == pytest.approx(100 * 2.718281828459045**-1, abs=1e-6) and "sacrebleu" in short.convention


def test_bleu_by_source_length():
    sources = ["a b", "a b c", "a b c d e"]
    references = ["one two three four", "five six seven eight", "one two three nine"]
    outputs = ["one two three four", "nothing is right here", "one two three nine"]
    scores = translation_scores(sources, references, outputs, length_bins=(3, 5, 9))
    assert [each.name for each in scores.by_source_length.values()] == ["0–3", "3–5", "5–9", "9+"]
    assert [each.sentences for each in scores.by_source_length.values()] == [1, 1, 1, 0]
    assert list(scores.by_source_length) == ["b1", "b2", "b3", "b4"]
    first, second, third, last = (each.bleu for each in scores.by_source_length.values())
    assert first == pytest.approx(100) and second < 10 and third == pytest.approx(100) and last is None
    assert "BLEU 9+" not in scores.table.columns
