"""Hiding tokens of a text to have them predicted: a fixed share of it, or as many as a uniform draw says.

    fixed share     chosen_t ~ Bernoulli(rate), ordinary tokens only     L = − Σ_{t chosen} log P(x_t | corrupted x)
    uniform         n ~ uniform {1, …, T},  I = n positions drawn without replacement
                                                                         L = − Σ_{t ∈ I} log P(y_t | y_\\I, x)

**Masked language modelling.** A chosen token is replaced by the mask token (mask_share, 80 %) or by a random ordinary
one (random_share, 10 %), or it stays (the rest): Devlin et al. 2019; anew at each visit: Liu et al. 2019. `mask_share =
1` hides all that are chosen. What a row gets is a function of its uniform numbers alone. Use it to pretrain a
bidirectional encoder on the text that its energy will judge (deng2020 §4.1).

**Conditional masked language modelling** (Ghazvininejad et al. 2019, §2.2). The model meets every stage of a
translation, from nothing known to all but one token known: what Mask-Predict, the warm start of chains, and single-site
energies ask of it. Hidden tokens become the mask token, never others. Use it to train a model that fills in whole
targets.
"""

import torch
from torch import Tensor

from energylm.objectives.cross_entropy import IGNORED
from energylm.randomness import derive_seed, row_keys, row_uniforms


def mask_tokens(
    tokens_BT: Tensor,
    uniforms_3BT: Tensor,
    *,
    ordinary_V: Tensor,
    mask_token_id: int,
    rate: float,
    mask_share: float,
    random_share: float,
) -> tuple[Tensor, Tensor]:
    """What the network sees, and the targets: the original where it is to be predicted, `IGNORED` elsewhere.

    Three numbers in [0, 1) a position decide: whether it is chosen, what becomes of it, and which random token it gets.
    Only tokens that `ordinary_V` marks true are ever chosen or put in: special tokens are no text.
    """
    choice_BT, fate_BT, token_BT = uniforms_3BT
    chosen_BT = ordinary_V[tokens_BT] & (choice_BT < rate)
    masked_BT = chosen_BT & (fate_BT < mask_share)
    replaced_BT = chosen_BT & ~masked_BT & (fate_BT < mask_share + random_share)
    ordinary_ids = ordinary_V.nonzero()[:, 0]
    random_BT = ordinary_ids[(token_BT * len(ordinary_ids)).long()]
    inputs_BT = torch.where(masked_BT, mask_token_id, torch.where(replaced_BT, random_BT, tokens_BT))
    return inputs_BT, torch.where(chosen_BT, tokens_BT, IGNORED)


def masking_uniforms(seed: int, *names: str | int, rows_B: Tensor, length: int) -> Tensor:
    """(3, B, length) numbers of the rows `rows_B`: a function of (seed, names, row, position), whatever the batch."""
    positions_T = torch.arange(length, device=rows_B.device)
    keys_BT = row_keys(derive_seed(seed, "masking", *names), rows_B[:, None], positions_T[None, :])
    return torch.stack([row_uniforms(keys_BT, step=draw) for draw in range(3)])


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
