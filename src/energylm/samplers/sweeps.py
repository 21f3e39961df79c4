"""One epoch: every free position is hidden once, in blocks, sequentially or in a random order.

    order of row r   a permutation of its free positions         block s = the s-th k of them           Goyal 2021, §6.5

Positions are drawn without replacement, each row its own order, before the first proposal and without a look at the
tokens: then every step keeps the target, and so does the epoch. A sweep in a fixed order is stationary, not reversible.

Relations  `chains` says what a step does with a block; `config.mcmc.AnnealingConfig` shrinks blocks over epochs.
"""

import torch
from torch import Tensor

from energylm.config.mcmc import RANDOM, PositionOrder
from energylm.contracts import Choices
from energylm.errors import ConfigError


def sweep(free_RT: Tensor, choices: Choices, *, order: PositionOrder, block_R: Tensor) -> list[Tensor]:
    """The hidden positions (R, T) of each step of an epoch. A row with fewer blocks than another waits at the end."""
    free_R = free_RT.sum(1)
    if (block_R < 1).any() or (block_R > free_R).any():
        row = int(((block_R < 1) | (block_R > free_R)).nonzero()[0])
        raise ConfigError(
            f"a block of {int(block_R[row])} positions was asked for, but row {row} has {int(free_R[row])} free "
            "positions; take a block between 1 and that"
        )
    rank_RT = _random_rank(free_RT, choices) if order == RANDOM else free_RT.cumsum(1) - 1
    step_RT = torch.where(free_RT, rank_RT // block_R[:, None], -1)
    return [step_RT == step for step in range(int(step_RT.max()) + 1)]


def _random_rank(free_RT: Tensor, choices: Choices) -> Tensor:
    """(R, T) the place of each free position in its row's random order."""
    rank_RT = torch.zeros_like(free_RT, dtype=torch.int64)
    left_RT = free_RT.clone()
    rows_R = torch.arange(len(free_RT), device=free_RT.device)
    for place in range(int(free_RT.sum(1).max())):
        # A row whose positions are all placed takes an empty decision: position 0, as the only choice.
        left_RT[:, 0] |= ~left_RT.any(1)
        chosen_R = choices.categorical(torch.where(left_RT, 0.0, float("-inf")))
        done_R = place >= free_RT.sum(1)
        rank_RT[rows_R, chosen_R] = torch.where(done_R, rank_RT[rows_R, chosen_R], place)
        left_RT[rows_R, chosen_R] = False
    return rank_RT
