"""Rows cut into blocks of 64 columns, for searches that look at blocks first and inside one block after.

Logits of half precision (bfloat16, float16) are subtracted, exponentiated and added up in float32: their own 8 or 11
bits would be wrong by hundredths of a nat. Sums of blocks are then added up in `accumulation_dtype`.
"""

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


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Of long sums: float64, or float32 on devices that have no float64 (Apple's)."""
    return torch.float32 if device.type == "mps" else torch.float64


def widened(values: Tensor) -> Tensor:
    """Values of half precision in float32, others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def block_weights(logits_RV: Tensor, largest_R1: Tensor) -> Tensor:
    """(R, ⌈V/64⌉) in `accumulation_dtype`: Σ exp(logit − largest) over each block, a slice of rows at a time."""
    rows_a_slice = max(1, SLICE_ELEMENTS // logits_RV.shape[1])
    parts = [
        as_blocks((widened(logits_RV[rows]) - largest_R1[rows]).exp_(), fill=0.0).sum(-1)
        for rows in _slices(len(logits_RV), rows_a_slice)
    ]
    return torch.cat(parts).to(accumulation_dtype(logits_RV.device))


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, size, step)]
