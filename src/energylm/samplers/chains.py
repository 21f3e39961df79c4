"""What all samplers of whole sequences share: the state of many chains, what a step reports, and how a target is asked.

    state ── hide a block ──► masked logits ──► propose ──► accept or stay ──► state

A row is one chain of one sentence; R = sentences × chains rows of different lengths, with different fixed positions,
travel in one batch. A sampler has `init` and `step`; which positions a step hides is decided outside it, by
`sweeps`, which does not look at the tokens: a block that depends on the state would change the target.

Relations  `metropolis_hastings` and `degenerate_gibbs` are such samplers; `epochs` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from energylm.contracts import Choices, MaskedModel

Constraint = Callable[[Tensor, Tensor], Tensor]  # tokens (R, T), lengths (R,) → (R,) bool: may the chain be there?


@dataclass(frozen=True)
class ChainState:
    """Right-padded sequences. `energy_R` is NaN where a sampler does not keep it."""

    tokens_RT: Tensor  # int64
    lengths_R: Tensor
    energy_R: Tensor  # float64
    source_R: Tensor | None = None  # which source each row has, for conditional models


@dataclass(frozen=True)
class StepInfo:
    """One proposal a row; rows without a block in this step made none."""

    proposed_R: Tensor  # bool
    accepted_R: Tensor  # bool, proposals of the old tokens included
    novel_R: Tensor  # bool: accepted, and different from the old state


class Target(Protocol):
    """An energy that is a sum of terms of single positions, each read off a masked model."""

    @property
    def model(self) -> MaskedModel: ...

    def energies(
        self,
        tokens_RT: Tensor,
        lengths_R: Tensor,
        *,
        source_R: Tensor | None = None,
        known_RT: Tensor | None = None,
    ) -> Tensor:
        """(R,) float64. `known_RT` holds terms that need not be computed, NaN elsewhere."""
        ...

    def terms_at(self, logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
        """(N,) terms of tokens, given the logits at their positions with nothing else hidden."""
        ...


class Sampler(Protocol):
    def init(self, tokens_RT: Tensor, lengths_R: Tensor, *, source_R: Tensor | None = None) -> ChainState: ...

    def step(self, state: ChainState, hidden_RT: Tensor, choices: Choices) -> tuple[ChainState, StepInfo]:
        """One proposal for every row that has a hidden position. The state that came is left as it was."""
        ...


def with_energies(state: ChainState, target: Target) -> ChainState:
    """The state with all its energies known."""
    unknown_R = state.energy_R.isnan()
    if not unknown_R.any():
        return state
    energy_R = state.energy_R.clone()
    energy_R[unknown_R] = target.energies(
        state.tokens_RT[unknown_R],
        state.lengths_R[unknown_R],
        source_R=None if state.source_R is None else state.source_R[unknown_R],
    )
    return replace(state, energy_R=energy_R)
