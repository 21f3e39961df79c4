"""Hiding as many tokens as a uniform draw says: the masking of conditional masked language models.

    n ~ uniform {1, …, T}       I = n positions drawn without replacement       L = − Σ_{t ∈ I} log P(y_t | y_\\I, x)

                                                                                  Ghazvininejad et al. 2019, §2.2

So the model meets every stage of a translation, from nothing known to all but one token known: what Mask-Predict, the
warm start of chains, and single-site energies ask of it. Hidden tokens become the mask token, never others.

Use it     to train a model that fills in whole targets.
Relations  `masked_lm` hides a fixed share of a text, and leaves or replaces some of it, to pretrain encoders.
"""

import torch
from torch import Tensor

from energylm.objectives.cross_entropy import IGNORED


def hide_uniformly(
    tokens_BT: Tensor, lengths_B: Tensor, uniforms_2BT: Tensor, *, mask_token_id: int
) -> tuple[Tensor, Tensor]:
    """What the network sees, and the targets: the original where it is hidden, `IGNORED` elsewhere.

    Of the numbers in [0, 1), the first of a row's second line says how many tokens are hidden, its first line which:
    those with the smallest numbers.
    """
    order_BT, count_BT = uniforms_2BT
    real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
    hidden_B = 1 + (count_BT[:, 0] * lengths_B).long()
    rank_BT = order_BT.masked_fill(~real_BT, float("inf")).argsort(dim=1, stable=True).argsort(dim=1)
    hidden_BT = (rank_BT < hidden_B[:, None]) & real_BT
    return tokens_BT.masked_fill(hidden_BT, mask_token_id), torch.where(hidden_BT, tokens_BT, IGNORED)
