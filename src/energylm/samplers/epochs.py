"""Many epochs of chains: sweeps, annealed blocks, annealed target, forced first epochs. Goyal 2021, §6.5, 6.7.3, 6.8.

    epoch e         block size k_e, target exp(−E / τ_e), one sweep over the free positions of every row
    sweep of row r  a permutation of its free positions, sequential or random; block s = the s-th k of them

Positions are drawn without replacement, each row its own order, before the first proposal and without a look at the
tokens: then every step keeps the target, and so does the epoch. A sweep in a fixed order is stationary, not reversible.

In the first `forced_epochs` every proposal is taken (acceptance 1): that is degenerate Gibbs, and only moves the start.
Every later epoch of Metropolis-Hastings keeps its own target; with τ_e falling these are different targets.

Relations  the samplers of `registry.SAMPLERS` make the steps; `estimators.mixing` judges the chains;
           `config.sampling.AnnealingConfig` shrinks blocks over epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.config.sampling import RANDOM, ChainsConfig, PositionOrder
from energylm.contracts import Choices
from energylm.errors import ConfigError
from energylm.registry import SAMPLERS
from energylm.samplers.chains import ChainState, Constraint, Sampler, Target, with_energies
from energylm.samplers.degenerate_gibbs import gibbs_of_target
from energylm.samplers.masked_proposal import MaskedProposal


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
    """(R, T) the rank of each free position in its row's random order."""
    rank_RT = torch.zeros_like(free_RT, dtype=torch.int64)
    left_RT = free_RT.clone()
    rows_R = torch.arange(len(free_RT), device=free_RT.device)
    for rank in range(int(free_RT.sum(1).max())):
        # A row whose positions all have a rank takes an empty decision: position 0, as the only choice.
        left_RT[:, 0] |= ~left_RT.any(1)
        chosen_R = choices.categorical(torch.where(left_RT, 0.0, float("-inf")))
        done_R = rank >= free_RT.sum(1)
        rank_RT[rows_R, chosen_R] = torch.where(done_R, rank_RT[rows_R, chosen_R], rank)
        left_RT[rows_R, chosen_R] = False
    return rank_RT


@dataclass(frozen=True)
class EpochInfo:
    """What happened in one epoch, by row."""

    proposed_R: Tensor  # proposals made
    accepted_R: Tensor  # of them accepted, those that changed nothing included
    novel_R: Tensor  # of them accepted and different from the state before


@dataclass(frozen=True)
class Epoch:
    index: int
    state: ChainState  # after the epoch, energies known
    info: EpochInfo
    temperature: float  # of the target
    forced: bool


def run_epoch(
    sampler: Sampler, state: ChainState, free_RT: Tensor, choices: Choices, *, order: PositionOrder, block_R: Tensor
) -> tuple[ChainState, EpochInfo]:
    """One sweep of `sampler` over the free positions."""
    counts_3R = torch.zeros(3, len(state.lengths_R), dtype=torch.int64, device=free_RT.device)
    for hidden_RT in sweep(free_RT, choices, order=order, block_R=block_R):
        state, info = sampler.step(state, hidden_RT, choices)
        counts_3R += torch.stack([info.proposed_R, info.accepted_R, info.novel_R])
    return state, EpochInfo(*counts_3R)


def run_epochs(
    target: Target,
    proposal: MaskedProposal,
    state: ChainState,
    free_RT: Tensor,
    choices: Choices,
    *,
    config: ChainsConfig,
    block_R: Tensor | None = None,
    constraint: Constraint | None = None,
    first_epoch: int = 0,
) -> Iterator[Epoch]:
    """Epochs `first_epoch` … of `config.sampler`. `block_R` gives rows first blocks of their own, in place of
    config.block; to resume, give the last state, its number of epochs and the choices as they stood."""
    if block_R is None:
        block_R = torch.full_like(state.lengths_R, config.block)
    annealing = config.annealing
    make_sampler = SAMPLERS.get(config.sampler)
    for epoch in range(first_epoch, config.epochs):
        temperature = annealing.temperature(epoch)
        forced = epoch < config.forced_epochs
        make = gibbs_of_target if forced else make_sampler
        sampler: Sampler = make(target, proposal, temperature, constraint)
        state = with_energies(state, target)
        sizes = [annealing.block_size(start, epoch=epoch, epochs=config.epochs) for start in block_R.tolist()]
        state, info = run_epoch(sampler, state, free_RT, choices, order=config.order, block_R=block_R.new_tensor(sizes))
        state = with_energies(state, target)
        yield Epoch(epoch, state, info, temperature, forced)
