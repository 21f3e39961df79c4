"""Metropolis-Hastings over whole sequences with proposals from a masked model.

    a(y' ; y) = min(1, exp(−(E(y') − E(y)) / τ) · q(y | y') / q(y' | y))                  Goyal 2021, algorithm 4

(The algorithm's line 11 prints energies where exp(−energy) is meant.) A step leaves p(y) ∝ exp(−E(y)/τ) as it is,
whatever block it hides, as long as the block was chosen without looking at y; so does a sweep, in any order that was
fixed beforehand. A `constraint` restricts the target to the sequences that satisfy it. Sequences with E = +inf have
target probability 0: a chain never moves to one, not even from another such (there the ratio is 0/0, and it stays); it
leaves one for the first sequence with finite energy that it proposes, if the way back is open.

With one hidden position, the masked pass of the proposal also gives that position's term of E(y'), so T − 1 passes are
left to make. Proposals of the old tokens, and those that cannot be accepted, cost none.

Use it     for exact samples, if the chains mix (`estimators.mixing` tells); with `temperature` below 1 to seek modes.
Relations  `degenerate_gibbs` forgets the acceptance; `masked_proposal` proposes; `epochs.sweep` chooses blocks.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.samplers.chains import ChainState, Constraint, StepInfo, Target
from energylm.samplers.masked_proposal import MaskedProposal


@dataclass(frozen=True)
class MetropolisHastings:
    """`temperature` is τ, the target's; the proposal has its own."""

    keeps_target: ClassVar[bool] = True

    target: Target
    proposal: MaskedProposal
    temperature: float = 1.0
    constraint: Constraint | None = None

    def init(self, tokens_RT: Tensor, lengths_R: Tensor, *, source_R: Tensor | None = None) -> ChainState:
        energy_R = self.target.energies(tokens_RT, lengths_R, source_R=source_R)
        return ChainState(tokens_RT, lengths_R, energy_R, source_R)

    def step(self, state: ChainState, hidden_RT: Tensor, choices: Choices) -> tuple[ChainState, StepInfo]:
        proposes_R = hidden_RT.any(1)
        if not proposes_R.any():
            return state, StepInfo(proposes_R, proposes_R, proposes_R)
        logits_NV = self.target.model.masked_logits(
            state.tokens_RT, state.lengths_R, hidden_RT, source_R=state.source_R
        )
        proposed = self.proposal.draw(state.tokens_RT, hidden_RT, logits_NV, choices)
        changed_R = (proposed.tokens_RT != state.tokens_RT).any(1)
        possible_R = proposed.log_reverse_R > float("-inf")
        if self.constraint is not None:
            possible_R &= self.constraint(proposed.tokens_RT, state.lengths_R)
        energy_R = self._energies(state, proposed.tokens_RT, hidden_RT, logits_NV, wanted_R=changed_R & possible_R)
        possible_R &= ~(state.energy_R.isposinf() & energy_R.isposinf())
        log_weight_R = (state.energy_R - energy_R) / self.temperature
        log_accept_R = log_weight_R + proposed.log_reverse_R - proposed.log_forward_R
        # The old tokens are always accepted: the sum above would say so up to rounding only.
        log_accept_R = log_accept_R.masked_fill(~possible_R, float("-inf")).masked_fill(~changed_R, 0.0)
        accepted_R = choices.accept(log_accept_R) & proposes_R
        novel_R = accepted_R & changed_R
        moved = replace(
            state,
            tokens_RT=torch.where(novel_R[:, None], proposed.tokens_RT, state.tokens_RT),
            energy_R=torch.where(novel_R, energy_R, state.energy_R),
        )
        return moved, StepInfo(proposed_R=proposes_R, accepted_R=accepted_R, novel_R=novel_R)

    def _energies(
        self, state: ChainState, proposed_RT: Tensor, hidden_RT: Tensor, logits_NV: Tensor, *, wanted_R: Tensor
    ) -> Tensor:
        """(R,) energies of the proposals where they are wanted; elsewhere the old ones stand in."""
        energy_R = state.energy_R.clone()
        if wanted_R.any():
            known_RT = torch.full(proposed_RT.shape, float("nan"), dtype=torch.float64, device=proposed_RT.device)
            # What was hidden alone saw all other tokens of the proposal, so its logits serve the proposal's energy too.
            alone_RT = hidden_RT & (wanted_R & (hidden_RT.sum(1) == 1))[:, None]
            if alone_RT.any():
                known_RT[alone_RT] = self.target.terms_at(logits_NV[alone_RT[hidden_RT]], proposed_RT[alone_RT])
            energy_R[wanted_R] = self.target.energies(
                proposed_RT[wanted_R],
                state.lengths_R[wanted_R],
                source_R=None if state.source_R is None else state.source_R[wanted_R],
                known_RT=known_RT[wanted_R],
            )
        return energy_R
