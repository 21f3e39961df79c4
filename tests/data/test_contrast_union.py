"""Several contrasts as one: every context keeps its own text and its own negatives, in any order and any mixture."""

import numpy as np

from energylm.data.contrast import ContrastUnion


class Told:
    """A contrast whose sequences say what was asked for: (source, context, negative), −1 for the real text."""

    def __init__(self, name, size, k):
        self.name, self.size, self.k = name, size, k

    def __len__(self):
        return self.size

    def sequences(self, contexts, copies):
        assert contexts.min() >= 0 and contexts.max() < self.size and (copies < self.k).all()
        return [
            [self.name, c, m] for c, row in zip(contexts.tolist(), copies.tolist(), strict=True) for m in (-1, *row)
        ]


UNION = ContrastUnion([Told(7, 3, 4), Told(8, 0, 2), Told(9, 5, 6)])


def test_contexts_are_counted_through():
    assert len(UNION) == 8 and UNION.k == 2
    assert UNION.counts(np.arange(8)).tolist() == [4, 4, 4, 6, 6, 6, 6, 6]


def test_sequences_stand_where_they_were_asked_for():
    """Contexts of both sources mixed: the expected list by hand, from (source, number within it)."""
    contexts, copies = np.array([5, 0, 7, 2, 3]), np.array([[5, 0], [1, 3], [2, 4], [0, 1], [4, 5]])
    places = [(9, 2), (7, 0), (9, 4), (7, 2), (9, 0)]
    expected = [[*place, copy] for place, row in zip(places, copies.tolist(), strict=True) for copy in (-1, *row)]
    assert UNION.sequences(contexts, copies) == expected
    backwards = UNION.sequences(contexts[::-1], copies[::-1])
    assert backwards != expected and sorted(backwards) == sorted(expected)


def test_an_empty_source_takes_no_place():
    assert [row[0] for row in UNION.sequences(np.array([2, 3]), np.zeros((2, 0), int))] == [7, 9]
