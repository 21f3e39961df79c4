"""Which positions of a sequence get a noise token: exactly k = ⌈rate · n⌉ of its n maskable ones, each set as likely.

    algorithm 2 of clark2020      k different positions at once      `unique_positions`
    algorithm 1 of clark2020      k independent positions            `independent_positions`

n counts maskable tokens, those that are text: special tokens and padding are never replaced and never judged. A row
keeps at least one real token, since log(k/(n − k)) must be finite: k ≤ n − 1, so a single maskable token gets no noise.
What a row gets is a function of its own uniform numbers, whatever its batch (`objectives.masked_lm.masking_uniforms`).

Use it     in Electric and in both forms of ELECTRA. BERT's masking (`masked_lm`) chooses each token for itself instead.
"""

import torch
from torch import Tensor


def noise_count(maskable_BT: Tensor, *, rate: float) -> Tensor:
    """(B,) int64: k = ⌈rate · n⌉, at most n − 1."""
    n_B = maskable_BT.sum(-1)
    # ⌈0.15 · 20⌉ is 3, but in floating point 0.15 · 20 lies a hair above it.
    k_B = (n_B.double() * rate - 1e-9).ceil().long()
    return torch.minimum(k_B, n_B - 1).clamp(min=0)


def unique_positions(uniforms_BT: Tensor, maskable_BT: Tensor, count_B: Tensor) -> Tensor:
    """(B, T) bool: the `count` maskable positions of each row whose uniform numbers are the smallest."""
    rank_BT: Tensor = uniforms_BT.masked_fill(~maskable_BT, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return (rank_BT < count_B[:, None]) & maskable_BT


def independent_positions(uniforms_BK: Tensor, maskable_BT: Tensor) -> Tensor:
    """(B, K) int64: maskable positions, each drawn by itself; 0 in rows that have none."""
    n_B1 = maskable_BT.sum(-1, keepdim=True)
    wanted_BK = (uniforms_BK * n_B1).long()  # the how-manieth maskable position
    place_BT = maskable_BT.cumsum(-1) - 1
    hit_BKT = maskable_BT[:, None, :] & (place_BT[:, None, :] == wanted_BK[..., None])
    return hit_BKT.long().argmax(-1)
