"""Prefix cuts: a pure function of (seed, window), uniform over the choices; either side can be generated."""

import numpy as np
import pytest

from energylm.data.contrast import cut_lengths, join_affix, split_affix


def test_a_window_is_cut_in_the_same_place_in_any_batch():
    together = cut_lengths(np.arange(100), seed=7)
    assert set(together.tolist()) == {120, 140}
    alone = np.concatenate([cut_lengths(np.array([n]), seed=7) for n in range(100)])
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(cut_lengths(np.arange(100)[::-1], seed=7), together[::-1])
    assert cut_lengths(np.arange(100), seed=8).tolist() != together.tolist()


def test_choices_are_equally_likely():
    """Binomial(20,000, 1/2): 5 standard deviations, a false alarm once in two million seeds; the seed is fixed."""
    cuts = cut_lengths(np.arange(20_000), seed=0)
    assert abs((cuts == 120).sum() - 10_000) < 5 * 20_000**0.5 / 2
    assert set(cut_lengths(np.arange(500), seed=0, choices=(0, 40, 80)).tolist()) == {0, 40, 80}


def test_both_sides_by_hand():
    windows = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    suffix = split_affix(windows, np.array([3, 4]), side="suffix")
    assert [c.tolist() for c in suffix.contexts] == [[1, 2, 3], [6, 7, 8, 9]]
    assert [t.tolist() for t in suffix.targets] == [[4, 5], [10]]
    prefix = split_affix(windows, np.array([3, 4]), side="prefix")
    assert [c.tolist() for c in prefix.contexts] == [[3, 4, 5], [7, 8, 9, 10]]
    assert [t.tolist() for t in prefix.targets] == [[1, 2], [6]]


@pytest.mark.parametrize("side", ["suffix", "prefix"])
def test_joining_undoes_splitting_and_only_on_the_same_side(side):
    windows = np.arange(24).reshape(3, 8)
    parts = split_affix(windows, np.array([0, 5, 8]), side=side)
    joined = [join_affix(c, t, side=side) for c, t in zip(parts.contexts, parts.targets, strict=True)]
    np.testing.assert_array_equal(joined, windows)
    other = "prefix" if side == "suffix" else "suffix"
    assert join_affix(parts.contexts[1], parts.targets[1], side=other).tolist() != windows[1].tolist()


def test_a_cut_outside_the_window_is_refused():
    with pytest.raises(ValueError, match=r"\[0, 4\]"):
        split_affix(np.zeros((1, 4), dtype=np.int64), np.array([5]), side="prefix")
