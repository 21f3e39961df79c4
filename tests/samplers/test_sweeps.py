"""Sweeps: every free position once, orders equally likely, blocks that fit."""

import itertools
from collections import Counter

import pytest
import torch

from energylm.errors import ConfigError
from energylm.randomness import row_keys
from energylm.samplers.choices import ChainChoices
from energylm.samplers.epochs import sweep
from energylm.testing import enumerate_paths, enumerate_rows

FREE_RT = torch.tensor([[True, True, False, True], [True, True, False, False]])


def keys(rows: int) -> torch.Tensor:
    return row_keys(0, torch.arange(rows), torch.zeros(rows, dtype=torch.int64))


def test_a_sequential_sweep_by_hand() -> None:
    blocks = sweep(FREE_RT, ChainChoices(keys(2)), order="sequential", block_R=torch.tensor([2, 1]))
    assert [block.nonzero().tolist() for block in blocks] == [[[0, 0], [0, 1], [1, 0]], [[0, 3], [1, 1]]]


def test_every_order_of_the_free_positions_is_equally_likely() -> None:
    def order(choices: object) -> tuple[int, ...]:
        blocks = sweep(FREE_RT[:1], choices, order="random", block_R=torch.tensor([1]))
        return tuple(int(block[0].nonzero()) for block in blocks)

    found: Counter[tuple[int, ...]] = Counter()
    for probability, outcome in enumerate_paths(order):
        found[outcome] += probability
    assert set(found) == set(itertools.permutations([0, 1, 3]))
    assert all(probability == pytest.approx(1 / 6) for probability in found.values())


def test_rows_have_orders_of_their_own_and_a_short_one_waits() -> None:
    def orders(choices: object) -> list[list[list[int]]]:
        blocks = sweep(FREE_RT, choices, order="random", block_R=torch.tensor([2, 2]))
        return [[block[row].nonzero().flatten().tolist() for block in blocks] for row in range(2)]

    long, short = enumerate_rows(orders, rows=2)
    assert {tuple(sorted(itertools.chain.from_iterable(outcome))) for _, outcome in long} == {(0, 1, 3)}
    assert sorted(outcome for _, outcome in short) == [[[0, 1], []], [[0, 1], []]]


def test_a_block_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"block of 3 positions.*row 1 has 2 free"):
        sweep(FREE_RT, ChainChoices(keys(2)), order="sequential", block_R=torch.tensor([3, 3]))


def test_certain_decisions_use_no_number() -> None:
    """So a row decides alike in any company: its second number is the same whether or not it waited in between."""
    alone, waited = ChainChoices(keys(1)), ChainChoices(keys(1))
    coin = torch.tensor([[0.0, 0.0]])
    certain = torch.tensor([[0.0, float("-inf")]])
    first = [int(alone.categorical(coin)) for _ in range(40)]
    second = []
    for _ in range(40):
        assert int(waited.categorical(certain)) == 0
        assert bool(waited.accept(torch.tensor([0.0])))
        second.append(int(waited.categorical(coin)))
    assert first == second and 0 < sum(first) < 40
    assert alone.decided_R.tolist() == waited.decided_R.tolist() == [40]
    for bad in (torch.full((1, 2), float("-inf")), torch.tensor([[float("nan"), 0.0]])):
        with pytest.raises(ValueError, match="no finite maximum"):
            alone.categorical(bad)
    with pytest.raises(ValueError, match="NaN"):
        alone.accept(torch.tensor([float("nan")]))
