"""Unique n-grams counted by hand; equal token counts; n-grams stay within texts."""

import pytest

from energylm.errors import DataError
from energylm.evaluation.ngrams import first_tokens, ngram_plot, ngram_table, unique_ngrams, unique_percentage

LOOP = [1, 2, 1, 2, 1, 2]  # bigrams 12 21 12 21 12: 2 of 5; trigrams 121 212 121 212: 2 of 4
PLAIN = [1, 2, 3, 4]  # bigrams 12 23 34


def test_by_hand():
    assert unique_percentage([LOOP], 2) == 40.0 and unique_percentage([LOOP], 3) == 50.0
    assert (
        unique_percentage([LOOP, PLAIN], 2) == 100 * 4 / 8
    )  # 12 21 23 34 of eight; no 2-gram from 2 to 1 across texts
    # Teeth: joined into one text they would have a ninth bigram, 21 at the seam.
    assert unique_percentage([LOOP + PLAIN], 2) == 100 * 4 / 9


def test_bodies_are_cut_to_equal_token_counts():
    """The longer a loop, the fewer of its n-grams are new: uncut, the longer body would look worse than it is."""
    bodies = {"short": [LOOP], "long": [LOOP, LOOP, LOOP]}
    assert unique_ngrams(bodies, orders=(2,)) == {"short": {2: 40.0}, "long": {2: 40.0}}
    assert unique_percentage(bodies["long"], 2) < 40.0


def test_cutting():
    assert first_tokens([[1, 2, 3], [4, 5], [6]], 4) == [[1, 2, 3], [4]]
    assert first_tokens([[1, 2, 3], [4, 5], [6]], 5) == [[1, 2, 3], [4, 5]]


def test_nothing_to_count():
    with pytest.raises(DataError, match="no text has 3 tokens"):
        unique_percentage([[1, 2], [3]], 3)


def test_table_and_plot():
    found = unique_ngrams({"data": [PLAIN * 3], "base": [LOOP * 2]})
    table = ngram_table(found, tokens=12)
    assert table.columns[1:] == ["unique 2-grams (%)", "unique 3-grams (%)", "unique 4-grams (%)"]
    assert table.rows[0][0] == "data" and "12 tokens" in table.convention
    lines = ngram_plot(found).series
    assert [line.name for line in lines] == ["data", "base"] and lines[0].x == [2, 3, 4]
