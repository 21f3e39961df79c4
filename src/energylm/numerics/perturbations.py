"""Copies of texts with one change each, at every position at once.

    replaced    copy p of a text has `token` at position p                                   T copies
    swapped     copy p has positions p and p + 1 exchanged                               T − 1 copies

Bakhtin et al. 2019 (fig. 2) apply them to real text to see where an energy and a language model are sensitive.
"""

import torch
from torch import Tensor


def replaced_at_every_position(tokens_BT: Tensor, token: int) -> Tensor:
    """(B, T, T): copy p of each text has `token` at position p."""
    here_TT = torch.eye(tokens_BT.shape[1], dtype=torch.bool, device=tokens_BT.device)
    return torch.where(here_TT, token, tokens_BT[:, None, :])


def swapped_at_every_position(tokens_BT: Tensor) -> Tensor:
    """(B, T − 1, T): copy p of each text has the tokens of positions p and p + 1 exchanged."""
    length = tokens_BT.shape[1]
    left_P = torch.arange(length - 1, device=tokens_BT.device)
    source_PT = torch.arange(length, device=tokens_BT.device).repeat(length - 1, 1)
    source_PT[left_P, left_P] = left_P + 1
    source_PT[left_P, left_P + 1] = left_P
    return tokens_BT[:, source_PT]
