"""Seen texts: found however they are cut, by hand and against a search for every run; what is new is not found."""

import numpy as np
import pytest

from energylm.data.overlap import SeenWindows


def brute_force(seen, texts, run):
    known = {tuple(text[i : i + run]) for text in seen for i in range(len(text) - run + 1)}
    runs = [[tuple(text[i : i + run]) for i in range(len(text) - run + 1)] for text in texts]
    return [sum(one in known for one in of) / max(len(of), 1) for of in runs]


def test_by_hand():
    """Runs of 2 of [1 2 3 4]: 12 23 34. [2 3 4 9] has 23 34 49: two of three. [1] has none."""
    seen = SeenWindows([[1, 2, 3, 4]], run_tokens=2)
    assert seen.shares([[2, 3, 4, 9], [1], [], [4, 1]]).tolist() == [pytest.approx(2 / 3), 0, 0, 0]
    assert seen.contains([[2, 3, 4, 9], [9, 9, 1, 2]]).tolist() == [True, False]


@pytest.mark.parametrize("run", [1, 3, 5])
def test_equals_brute_force(run):
    rng = np.random.default_rng(run)
    seen, texts = ([rng.integers(0, 4, n).tolist() for n in rng.integers(0, 30, 20)] for _ in range(2))
    assert SeenWindows(seen, run_tokens=run).shares(texts).tolist() == pytest.approx(brute_force(seen, texts, run))


def test_a_shifted_window_is_found_and_order_matters():
    book = np.random.default_rng(0).integers(0, 2048, 1000)
    seen = SeenWindows([book[start : start + 64] for start in range(0, 640, 64)])
    shifted, reversed_, new = book[30:94], book[0:64][::-1], book[700:764]
    assert seen.contains([shifted, reversed_, new]).tolist() == [True, False, False]
    # Teeth: runs must not reach over the end of a text into the next one.
    assert SeenWindows([[1, 2], [3, 4]], run_tokens=2).shares([[2, 3]]).tolist() == [0]


def test_nothing_seen_and_nothing_asked():
    assert SeenWindows([]).contains([[1] * 50]).tolist() == [False]
    assert SeenWindows([[1] * 50]).shares([]).tolist() == []
    with pytest.raises(ValueError, match="at least 1 token"):
        SeenWindows([], run_tokens=0)
