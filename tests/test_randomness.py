"""One seed in, independent reproducible numbers out: pinned values, uniformity, and independence of the batch."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from energylm.randomness import derive_seed, generator, row_keys, row_uniforms, seed_tensor, shuffled
from energylm.testing import assert_mean, assert_same_distribution


def uniforms(seed, groups, members, step=0):
    """(groups · members,) one number for each pair of a context and a copy."""
    group, member = torch.meshgrid(torch.as_tensor(groups), torch.as_tensor(members), indexing="ij")
    return row_uniforms(row_keys(seed, group.flatten(), member.flatten()), step=step)


def assert_uncorrelated(first, second):
    """Products of centred uniforms have mean 0 (false alarm 1e-4)."""
    assert_mean((first - 0.5) * (second - 0.5), 0.0)


def test_streams_are_pinned():
    """These numbers are part of every published result: a change here changes them all."""
    assert derive_seed(0, "dropout", 3) == 7843292026817520709
    assert torch.rand(1, generator=generator(0, "dropout", 3)).item() == pytest.approx(0.5205950140953064)


def test_streams_differ_by_every_part_of_their_name():
    names = [(), ("a",), ("b",), ("a", 1), ("a", "1"), ("a", 2), (1, "a"), ("a1",), ("", "a"), ("a", "")]
    seeds = [derive_seed(seed, *name) for seed in (0, 1, -1, 2**80) for name in names]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)


def test_generators_touch_no_global_state():
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(0, "x"))
    assert torch.equal(torch.get_rng_state(), before)


def plain_uniform(seed, group, member, step):
    """The formula of the module's header in Python's whole numbers, which do not wrap around by themselves."""
    wrap = (1 << 64) - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & wrap
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & wrap
        x = (x ^ x >> 27) * 0x94D049BB133111EB & wrap
        return x ^ x >> 31

    start = mix(seed * 0x9E3779B97F4A7C15 + group * 0xD1342543DE82EF95 & wrap)
    key = mix(start + member * 0xAF251AF3B0F025B5 & wrap)
    return (mix(key + (step + 1) * 0xA24BAED4963EE407 & wrap) >> 11) / 2**53


def test_rows_may_have_seeds_of_their_own():
    seeds = [0, 7, -1, 2**63, 2**80 + 5]
    group, member = torch.arange(5), torch.tensor([3, 1, 4, 1, 5])
    together = row_keys(seed_tensor(seeds), group, member)
    alone = [row_keys(seed, group[i : i + 1], member[i : i + 1]) for i, seed in enumerate(seeds)]
    assert together.equal(torch.cat(alone))
    assert not together.equal(row_keys(7, group, member))  # teeth


def test_row_numbers_are_pinned_and_equal_plain_arithmetic():
    numbers = uniforms(7, [0, 1], [0, 1], step=2)
    assert numbers.dtype == torch.float64
    assert numbers.tolist() == [0.35258471398392444, 0.4796477791077961, 0.9077556821862819, 0.5698194243349936]
    for seed, step in itertools.product([0, 7, -3, 2**63 + 5], [0, 1, 99]):
        expected = [plain_uniform(seed, group, member, step) for group in range(9) for member in range(9)]
        assert uniforms(seed, range(9), range(9), step=step).tolist() == expected


def test_a_row_keeps_its_numbers_in_any_batch():
    whole = uniforms(0, range(20), range(30), step=5).view(20, 30)
    for rows, columns in [(slice(3, 4), slice(0, 30)), (slice(0, 20), slice(7, 8)), (slice(5, 9), slice(11, 20))]:
        part = uniforms(0, range(20)[rows], range(30)[columns], step=5)
        assert torch.equal(part, whole[rows, columns].flatten())


@pytest.mark.parametrize("axis", ["groups", "members", "steps", "seeds"])
def test_numbers_are_uniform_along_every_axis(axis):
    """50,000 numbers along one axis in 200 equal cells (false alarm 1e-4)."""
    count = 50_000
    if axis == "groups":
        numbers = uniforms(3, range(count), [0])
    elif axis == "members":
        numbers = uniforms(3, [0], range(count))
    elif axis == "steps":
        keys = row_keys(3, torch.arange(500), torch.zeros(500))
        numbers = torch.cat([row_uniforms(keys, step=step) for step in range(100)])
    else:
        numbers = torch.cat([uniforms(seed, range(100), range(5)) for seed in range(100)])
    assert numbers.min() >= 0 and numbers.max() < 1
    cells = torch.bincount((numbers * 200).long(), minlength=200)
    assert_same_distribution(cells, torch.full((200,), 1 / 200, dtype=torch.float64))
    squeezed = torch.bincount((numbers**1.05 * 200).long(), minlength=200)  # the mistake: slightly too small
    with pytest.raises(AssertionError):
        assert_same_distribution(squeezed, torch.full((200,), 1 / 200, dtype=torch.float64))


def test_neighbours_are_uncorrelated():
    base = uniforms(0, range(100), range(500))
    neighbours = {
        "next member": uniforms(0, range(100), range(1, 501)),
        "next group": uniforms(0, range(1, 101), range(500)),
        "next step": uniforms(0, range(100), range(500), step=1),
        "next seed": uniforms(1, range(100), range(500)),
        "group and member swapped": uniforms(0, range(500), range(100)).view(500, 100).T.flatten(),
    }
    for name, other in neighbours.items():
        if name == "group and member swapped":
            off_diagonal = ~torch.eye(100, 500, dtype=torch.bool).flatten()
            assert_uncorrelated(base[off_diagonal], other[off_diagonal])
        else:
            assert_uncorrelated(base, other)
    with pytest.raises(AssertionError):  # the mistake: numbers that lean on the last ones by a twentieth
        assert_uncorrelated(base, 0.95 * neighbours["next step"] + 0.05 * base)


def test_no_two_rows_share_a_key():
    keys = torch.cat(
        [row_keys(seed, torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300)) for seed in (0, 1)]
    )
    assert len(keys.unique()) == len(keys)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1000, 4097, 65_537])
def test_a_shuffle_is_a_bijection(size):
    for seed in (0, 1):
        assert np.array_equal(np.sort(shuffled(np.arange(size), size, seed=seed)), np.arange(size))


def test_a_shuffle_is_pinned_and_named_by_its_seed():
    assert shuffled(np.arange(10), 10, seed=0).tolist() == PINNED_SHUFFLE
    assert shuffled(np.array([3]), 10, seed=0).tolist() == PINNED_SHUFFLE[3:4]  # any position alone
    assert not np.array_equal(shuffled(np.arange(100), 100, seed=0), shuffled(np.arange(100), 100, seed=1))


PINNED_SHUFFLE = [4, 0, 2, 5, 7, 9, 1, 3, 6, 8]


@pytest.mark.parametrize(("size", "seeds"), [(3, 600), (4, 2_000)])
def test_all_orders_of_few_items_are_equally_likely(size, seeds):
    orders = list(itertools.permutations(range(size)))
    counts = Counter(tuple(shuffled(np.arange(size), size, seed=seed).tolist()) for seed in range(seeds))
    assert_same_distribution(
        torch.tensor([counts[order] for order in orders]), torch.full((len(orders),), 1 / len(orders)).double()
    )


def test_few_rounds_would_not_do(monkeypatch):
    """Teeth: the network with 2 rounds leaves traces that the test above sees."""
    monkeypatch.setattr("energylm.randomness._ROUNDS", 2)
    with pytest.raises(AssertionError, match="chi-square"):
        test_all_orders_of_few_items_are_equally_likely(4, 500)


@pytest.mark.parametrize("size", [40, 1000])
def test_every_item_goes_everywhere(size):
    """Where the first, a middle and the last item go, over 2,000 seeds, in 20 equal parts (false alarm 1e-4)."""
    positions = np.array([0, size // 2, size - 1])
    goals = np.stack([shuffled(positions, size, seed=seed) for seed in range(2_000)])
    for column in goals.T:
        cells = torch.bincount(torch.from_numpy(column) * 20 // size, minlength=20)
        assert_same_distribution(cells, torch.full((20,), 1 / 20, dtype=torch.float64))


def test_neighbours_are_torn_apart():
    """Steps between the goals of neighbours are distributed as for two random items: no run, no stride survives."""
    size = 100_000
    steps = np.diff(shuffled(np.arange(size), size, seed=0)) / size
    # the difference of two uniforms: triangular on (−1, 1); every tenth step, so that they are nearly independent
    assert stats.kstest(steps[::10], stats.triang(c=0.5, loc=-1, scale=2).cdf).pvalue > 1e-4


def test_a_shuffle_of_fifty_million_is_quick():
    """At least a million positions a second, so that the data order never waits; the best of three."""
    positions = np.arange(1_000_000)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        shuffled(positions, 50_000_000, seed=0)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0


@pytest.mark.parametrize(("positions", "size"), [([3], 3), ([-1], 3), ([0], 0)])
def test_positions_outside_are_refused(positions, size):
    with pytest.raises(ValueError, match=rf"\[0, {size}\)"):
        shuffled(np.array(positions), size, seed=0)


def test_no_positions_are_no_problem():
    assert shuffled(np.array([], dtype=np.int64), 5, seed=0).tolist() == []
