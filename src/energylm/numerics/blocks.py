"""Rows cut into blocks of 64 columns, for searches that look at blocks first and inside one block after."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64
SLICE_ELEMENTS = 1 << 19  # 2 MB of float32: what a pass makes is read again while it is still in the cache


def as_blocks(values_RV: Tensor, *, fill: float) -> Tensor:
    """(R, ⌈V/64⌉, 64); a last block that is not full is filled up with `fill`."""
    if remainder := values_RV.shape[1] % BLOCK:
        values_RV = pad(values_RV, (0, BLOCK - remainder), value=fill)
    return values_RV.view(values_RV.shape[0], -1, BLOCK)


def block_weights(logits_RV: Tensor, largest_R1: Tensor) -> Tensor:
    """(R, ⌈V/64⌉) float64: Σ exp(logit − largest) over each block, a slice of rows at a time."""
    rows_a_slice = max(1, SLICE_ELEMENTS // logits_RV.shape[1])
    parts = [
        as_blocks((logits_RV[rows] - largest_R1[rows]).exp_(), fill=0.0).sum(-1)
        for rows in _slices(len(logits_RV), rows_a_slice)
    ]
    return torch.cat(parts).double()


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, size, step)]
