"""From who-followed-whom to sequences: the last line of goyal2021's algorithm 1, and the moves between two steps."""

import torch
from torch import Tensor

from energylm.contracts import State


def follow(parents_BTK: Tensor, choices_BTK: Tensor) -> Tensor:
    """(B, K, T): the symbols along the back-pointers that end in each of the K elements of the last step."""
    steps, width = choices_BTK.shape[1:]
    element_BK = torch.arange(width, device=choices_BTK.device).expand(len(choices_BTK), width)
    symbols_TBK = [element_BK] * steps
    for t in reversed(range(steps)):
        symbols_TBK[t] = choices_BTK[:, t].gather(1, element_BK)
        element_BK = parents_BTK[:, t].gather(1, element_BK)
    return torch.stack(symbols_TBK, dim=-1)


def pick(state: State, parent_BK: Tensor) -> State:
    """Each new element's own copy of its parent's state."""
    batch_B1 = torch.arange(len(parent_BK), device=parent_BK.device)[:, None]
    return tuple(tensor[batch_B1, parent_BK] for tensor in state)


def mix(state: State, back_BKJ: Tensor) -> State:
    """Each new element's mixture of the states before it, by soft back-pointers (all tensors of the state alike)."""
    return tuple(
        torch.bmm(back_BKJ, tensor.flatten(2)).view(*back_BKJ.shape[:2], *tensor.shape[2:]) for tensor in state
    )


def written_lengths(tokens_BKT: Tensor, *, limit_B: Tensor, eos_token_id: int | None) -> Tensor:
    """(B, K): symbols up to and with the first EOS, at most the row's limit."""
    limit_BK = limit_B[:, None].expand(tokens_BKT.shape[:2])
    if eos_token_id is None:
        return limit_BK
    is_end_BKT = tokens_BKT == eos_token_id
    first_BK = is_end_BKT.int().argmax(-1) + 1
    return torch.where(is_end_BKT.any(-1), torch.minimum(first_BK, limit_BK), limit_BK)
