"""Which requests share a call of the engine: by hand, and as properties of random requests."""

import random

from energylm.bundles.batched_requests import MOST_WASTE, RequestShape, groups


def test_by_hand():
    shapes = [
        RequestShape(10, 8, 16),
        RequestShape(90, 8, 10),  # would fit 100 alone, and with nobody who writes more
        RequestShape(10, 16, 16),
        RequestShape(10, 1, 16),  # 16 copies would be waste
        RequestShape(10, 8, 40),  # so would 40 tokens for those who want 16
        RequestShape(10, 8, 12),
    ]
    assert groups(shapes, window=100) == [[2, 0, 5], [4], [1], [3]]
    assert groups(shapes, window=None) == [[2, 0, 5, 1], [4], [3]]
    assert groups([], window=None) == []


def test_everyone_is_in_one_group_that_suits_all():
    chooser = random.Random(0)
    for window in (None, 64, 200):
        shapes = [
            RequestShape(chooser.randint(1, 60), chooser.randint(1, 64), chooser.randint(1, 64)) for _ in range(60)
        ]
        found = groups(shapes, window=window)
        assert sorted(place for group in found for place in group) == list(range(60))
        for group in found:
            members = [shapes[place] for place in group]
            for sizes in ([one.n for one in members], [one.max_new_tokens for one in members]):
                assert max(sizes) <= MOST_WASTE * min(sizes)
            tokens = max(one.context_tokens for one in members) + max(one.max_new_tokens for one in members)
            assert window is None or tokens <= window or len(group) == 1
