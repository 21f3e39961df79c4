"""Degenerate Gibbs: tokens are drawn from the masked conditionals and always taken.

    y_I ~ Π_{i ∈ I} q_i(· | y_\\I)                                              Goyal 2021, §6.6; Wang & Cho 2019

The conditionals of a masked model need not belong to any joint distribution, so this chain has no known target: neither
exp(−E_raw) nor exp(−E_local), and with the positions in another order it settles elsewhere. It costs one masked pass a
step, where Metropolis-Hastings costs T.

Use it     as the baseline that it is, or for the first, discarded epochs of Metropolis-Hastings ("forced acceptance").
Relations  at temperature 0 with blocks of the least confident tokens it is `mask_predict`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from energylm.contracts import Choices, MaskedModel
from energylm.samplers.chains import ChainState, Constraint, StepInfo, Target
from energylm.samplers.masked_proposal import MaskedProposal


@dataclass(frozen=True)
class DegenerateGibbs:
    """The state's energies are NaN: `chains.with_energies` fills them in when they are wanted."""

    keeps_target: ClassVar[bool] = False

    model: MaskedModel
    proposal: MaskedProposal
    constraint: Constraint | None = None

    def init(self, tokens_RT: Tensor, lengths_R: Tensor, *, source_R: Tensor | None = None) -> ChainState:
        unknown_R = torch.full(lengths_R.shape, float("nan"), dtype=torch.float64, device=lengths_R.device)
        return ChainState(tokens_RT, lengths_R, unknown_R, source_R)

    def step(self, state: ChainState, hidden_RT: Tensor, choices: Choices) -> tuple[ChainState, StepInfo]:
        proposes_R = hidden_RT.any(1)
        if not proposes_R.any():
            return state, StepInfo(proposes_R, proposes_R, proposes_R)
        logits_NV = self.model.masked_logits(state.tokens_RT, state.lengths_R, hidden_RT, source_R=state.source_R)
        proposed_RT = self.proposal.draw(state.tokens_RT, hidden_RT, logits_NV, choices).tokens_RT
        accepted_R = proposes_R
        if self.constraint is not None:
            accepted_R = proposes_R & self.constraint(proposed_RT, state.lengths_R)
        novel_R = accepted_R & (proposed_RT != state.tokens_RT).any(1)
        moved = replace(
            state,
            tokens_RT=torch.where(novel_R[:, None], proposed_RT, state.tokens_RT),
            energy_R=state.energy_R.masked_fill(novel_R, float("nan")),
        )
        return moved, StepInfo(proposed_R=proposes_R, accepted_R=accepted_R, novel_R=novel_R)


def gibbs_of_target(
    target: Target, proposal: MaskedProposal, temperature: float = 1.0, constraint: Constraint | None = None
) -> DegenerateGibbs:
    """The sampler by its registered name: of the target only the model matters, and no temperature."""
    return DegenerateGibbs(target.model, proposal, constraint)
