"""Draws from categorical distributions by inverting the cumulative sum, two levels deep: blocks of 64, then inside one.

    index = min { v : Σ_{w ≤ v} exp(l_w) > u · Σ_w exp(l_w) }          u uniform in [0, 1)

The vocabulary is cut into blocks: the block is found from the sums of blocks, the token from the sums inside that
block, so only R·(V/64 + 64) numbers are accumulated, in float64 (float32 on devices without it), instead of R·V. For
1,024 × 8,192 logits this costs a hundredth of `torch.multinomial`. The uniform is scaled by the very total that is
searched, and kept strictly below it, so the search never runs off the end and never lands on a token of probability
zero.

Logits of half precision (bfloat16, float16) are subtracted, exponentiated and added up in float32: their own 8 or 11
bits would be wrong by hundredths of a nat. Sums of blocks are then added up in `accumulation_dtype`.

Relations  `truncation` looks for the likeliest tokens in the same blocks.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from energylm.errors import ModelError
from energylm.numerics import kernels
from energylm.numerics.kernels import BLOCK

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
    """(R, ⌈V/64⌉) in `accumulation_dtype`: Σ exp(logit − largest) over each block; where nothing is compiled, a slice
    of rows at a time."""
    if (compiled := kernels.block_weights(logits_RV, largest_R1)) is not None:
        return compiled
    rows_a_slice = max(1, SLICE_ELEMENTS // logits_RV.shape[1])
    parts = [
        as_blocks((widened(logits_RV[rows]) - largest_R1[rows]).exp_(), fill=0.0).sum(-1)
        for rows in _slices(len(logits_RV), rows_a_slice)
    ]
    return torch.cat(parts).to(accumulation_dtype(logits_RV.device))


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, size, step)]


def draw_categorical(logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """One draw a row: its index (R,) and its log-probability (R,) in `accumulation_dtype`; −inf logits never."""
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    weight_RM = block_weights(logits_RV, largest_R1)
    block_R, before_R, total_R = _search(weight_RM, uniform_R)
    if bad := int(total_R.isnan().sum()):  # a NaN or +inf among the logits, or nothing but −inf
        raise ModelError(
            f"{bad:,} of {len(total_R):,} rows of logits hold NaN or infinity, or leave no token to draw; the "
            "network's weights are damaged or overflow: make it again, or give another"
        )
    rows_R = torch.arange(logits_RV.shape[0], device=logits_RV.device)
    inside_RB = widened(as_blocks(logits_RV, fill=float("-inf"))[rows_R, block_R]) - largest_R1
    share_R = (uniform_R * total_R - before_R) / weight_RM[rows_R, block_R]
    within_R, _, _ = _search(inside_RB.to(weight_RM.dtype).exp(), share_R.clamp(min=0.0))
    chosen_logit_R = inside_RB[rows_R, within_R].to(weight_RM.dtype)
    return block_R * BLOCK + within_R, chosen_logit_R - total_R.log()


def log_sum_exp(logits_RV: Tensor, largest_R1: Tensor) -> Tensor:
    """(R,) log Σ_v exp(l_v) in `accumulation_dtype`, for callers that know each row's largest logit already."""
    weight_RM = block_weights(logits_RV, largest_R1)
    return largest_R1[:, 0].to(weight_RM.dtype) + weight_RM.sum(-1).log()


def _search(weight_RM: Tensor, fraction_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first column whose cumulative weight exceeds `fraction` of the total; what came before it; the total."""
    cumulative_RM = weight_RM.cumsum(-1)
    total_R = cumulative_RM[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(fraction_R * total_R, below_total_R)
    index_R = torch.searchsorted(cumulative_RM, target_R[:, None], right=True)[:, 0]
    before_R = cumulative_RM.gather(1, (index_R - 1).clamp(min=0)[:, None])[:, 0]
    return index_R, torch.where(index_R > 0, before_R, 0.0), total_R
