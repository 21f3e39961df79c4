"""Which positions get noise: exactly k of the maskable ones, every set as likely, whatever the batch."""

import itertools

import pytest
import torch

from energylm.objectives.masking import masking_uniforms
from energylm.objectives.noised_tokens import independent_positions, noise_count, unique_positions
from energylm.testing import assert_same_distribution

MASKABLE = torch.tensor([True, False, True, True, True, False, True])  # 5 of 7


@pytest.mark.parametrize(
    ("n", "k"), [(0, 0), (1, 0), (2, 1), (6, 1), (7, 2), (20, 3), (21, 4), (40, 6), (100, 15), (160, 24)]
)
def test_k_is_the_ceiling_of_fifteen_per_cent(n, k):
    """⌈0.15 n⌉, at most n − 1; 0.15 · 20 and 0.15 · 40 are whole numbers that floating point overshoots."""
    maskable = torch.arange(200)[None, :] < n
    assert noise_count(maskable, rate=0.15).tolist() == [k]


def sets(count, *, maskable=MASKABLE, rows=20_000):
    uniforms = masking_uniforms(0, "train", 1, rows_B=torch.arange(rows), length=len(MASKABLE))[0]
    return unique_positions(uniforms, maskable.expand(rows, -1), torch.full((rows,), count))


def test_every_set_is_as_likely():
    """C(5, 2) = 10 sets of two; false alarm 1e-4."""
    chosen = sets(2)
    assert bool((chosen.sum(1) == 2).all()) and not bool((chosen & ~MASKABLE).any())
    places = MASKABLE.nonzero()[:, 0].tolist()
    counts = torch.tensor([int((chosen[:, a] & chosen[:, b]).sum()) for a, b in itertools.combinations(places, 2)])
    assert_same_distribution(counts, torch.full((10,), 0.1, dtype=torch.float64))
    spoilt = counts.clone()
    spoilt[0] += 400
    with pytest.raises(AssertionError):  # teeth: a set that comes a fifth too often
        assert_same_distribution(spoilt, torch.full((10,), 0.1, dtype=torch.float64))


def test_padding_would_be_chosen_if_nothing_kept_it_out():
    assert bool((sets(2, maskable=torch.ones(7, dtype=torch.bool)) & ~MASKABLE).any())


def test_more_than_there_are_means_all_and_none_means_none():
    assert torch.equal(sets(6, rows=3), MASKABLE.expand(3, -1))
    assert not sets(0, rows=3).any()


def test_a_row_keeps_its_positions_in_any_batch():
    uniforms = masking_uniforms(3, "train", 9, rows_B=torch.arange(6), length=7)[0]
    counts = torch.tensor([1, 2, 3, 4, 2, 1])
    whole = unique_positions(uniforms, MASKABLE.expand(6, -1), counts)
    alone = [unique_positions(uniforms[r : r + 1], MASKABLE[None], counts[r : r + 1]) for r in range(6)]
    assert torch.equal(torch.cat(alone), whole)


def test_independent_positions_are_uniform_and_may_repeat():
    uniforms = masking_uniforms(0, "train", 2, rows_B=torch.arange(20_000), length=2)[0]
    drawn = independent_positions(uniforms, MASKABLE.expand(20_000, -1))
    places = MASKABLE.nonzero()[:, 0]
    counts = torch.bincount(drawn[:, 0], minlength=7)[places]
    assert int(counts.sum()) == 20_000
    assert_same_distribution(counts, torch.full((5,), 0.2, dtype=torch.float64))
    repeats = int((drawn[:, 0] == drawn[:, 1]).sum())
    assert_same_distribution(torch.tensor([repeats, 20_000 - repeats]), torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert independent_positions(uniforms[:2], torch.zeros(2, 7, dtype=torch.bool)).tolist() == [[0, 0]] * 2
