"""Many epochs of chains: sweeps, annealed blocks, annealed target, forced first epochs. Goyal 2021, §6.5, 6.7.3, 6.8.

    epoch e      block size k_e, target exp(−E / τ_e), one sweep over the free positions of every row

In the first `forced_epochs` every proposal is taken (acceptance 1): that is degenerate Gibbs, and only moves the start.
Every later epoch of Metropolis-Hastings keeps its own target; with τ_e falling these are different targets.

Relations  `metropolis_hastings`, `degenerate_gibbs` make the steps, `sweeps` the blocks; `estimators.chains` judges.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.config.mcmc import DEGENERATE_GIBBS, ChainsConfig, PositionOrder
from energylm.contracts import Choices
from energylm.samplers.chains import ChainState, Constraint, Sampler, Target, with_energies
from energylm.samplers.degenerate_gibbs import DegenerateGibbs
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.samplers.metropolis_hastings import MetropolisHastings
from energylm.samplers.sweeps import sweep


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
    gibbs = DegenerateGibbs(target.model, proposal, constraint)
    for epoch in range(first_epoch, config.epochs):
        temperature = annealing.temperature(epoch)
        forced = epoch < config.forced_epochs
        sampler: Sampler = gibbs
        if config.sampler != DEGENERATE_GIBBS and not forced:
            sampler = MetropolisHastings(target, proposal, temperature, constraint)
            state = with_energies(state, target)
        sizes = [annealing.block_size(start, epoch=epoch, epochs=config.epochs) for start in block_R.tolist()]
        state, info = run_epoch(sampler, state, free_RT, choices, order=config.order, block_R=block_R.new_tensor(sizes))
        state = with_energies(state, target)
        yield Epoch(epoch, state, info, temperature, forced)
