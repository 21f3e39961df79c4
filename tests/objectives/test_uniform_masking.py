"""Hiding a uniform number of tokens: the law by enumeration of a grid of numbers, and what must never be hidden."""

import itertools

import pytest
import torch

from energylm.objectives.cross_entropy import IGNORED
from energylm.objectives.masking import hide_uniformly, masking_uniforms

MASK = 9


def hidden_sets(orders: torch.Tensor, counts: torch.Tensor, length: int, width: int) -> list[tuple[int, ...]]:
    tokens_BT = torch.arange(width).expand(len(orders), -1)
    inputs_BT, targets_BT = hide_uniformly(
        tokens_BT,
        torch.full((len(orders),), length),
        torch.stack([orders, counts[:, None].expand(-1, width)]),
        mask_token_id=MASK,
    )
    hidden_BT = targets_BT != IGNORED
    assert torch.equal(inputs_BT, torch.where(hidden_BT, MASK, tokens_BT))
    assert torch.equal(targets_BT[hidden_BT], tokens_BT[hidden_BT])
    return [tuple(row.nonzero()[:, 0].tolist()) for row in hidden_BT]


def test_every_number_and_every_set_of_a_number_is_equally_likely() -> None:
    """Three tokens: 6 orders × 3 numbers. One of {1, 2, 3} in a third each, and of one number each set as often."""
    orders = torch.tensor(list(itertools.permutations((0.1, 0.4, 0.8))))
    found = []
    for count in (0.0, 0.34, 0.99):
        # A fourth column is padding with the smallest number of all: never hidden.
        found += hidden_sets(torch.nn.functional.pad(orders, (0, 1)), torch.full((6,), count), length=3, width=4)
    counts = {one: found.count(one) for one in set(found)}
    assert counts == {(0,): 2, (1,): 2, (2,): 2, (0, 1): 2, (0, 2): 2, (1, 2): 2, (0, 1, 2): 6}


def test_a_fixed_rate_would_be_another_law() -> None:
    """Teeth: independent coins of rate ½ hide 1 of 3 tokens in 3/8 of the cases, and none in 1/8."""
    rows = 4000
    uniforms = masking_uniforms(0, "test", rows_B=torch.arange(rows), length=3)
    sizes = torch.tensor([len(one) for one in hidden_sets(uniforms[0], uniforms[1, :, 0], 3, 3)])
    shares = [float((sizes == size).double().mean()) for size in range(4)]
    assert shares[0] == 0 and shares[1:] == pytest.approx([1 / 3] * 3, abs=0.03)  # four standard errors
    coins = (uniforms[0] < 0.5).sum(1)
    assert abs(float((coins == 0).double().mean()) - 1 / 8) < 0.03


def test_a_row_is_the_same_in_any_batch() -> None:
    tokens_BT, lengths_B = torch.arange(12).view(2, 6) % 7, torch.tensor([6, 4])
    whole = hide_uniformly(
        tokens_BT, lengths_B, masking_uniforms(1, rows_B=torch.tensor([3, 8]), length=6)[:2], mask_token_id=MASK
    )
    alone = hide_uniformly(
        tokens_BT[1:, :4],
        lengths_B[1:],
        masking_uniforms(1, rows_B=torch.tensor([8]), length=4)[:2],
        mask_token_id=MASK,
    )
    for all_rows, one_row in zip(whole, alone, strict=True):
        assert torch.equal(all_rows[1:, :4], one_row)
