"""What all samplers of whole sequences share: the state of many chains, a step's report, the target, and constraints.

    state ── hide a block ──► masked logits ──► propose ──► accept or stay ──► state

A row is one chain of one sentence; R = sentences × chains rows of different lengths, with different fixed positions,
travel in one batch. A sampler has `init` and `step`; which positions a step hides is decided outside it, by
`epochs.sweep`, which does not look at the tokens: a block that depends on the state would change the target.

A constraint restricts the target to the sequences that satisfy it. `LexicalConstraint` names phrases that every
sequence of a chain must, or must not, contain:

    p'(y) ∝ p(y) · 1[every required phrase occurs in y] · 1[no forbidden phrase occurs in y]

A phrase is a list of token ids, and it may have several spellings (with and without a space before it, say), one of
which is enough. A proposal that breaks a constraint is rejected. Note what that does to mixing: a phrase that must
occur and occurs once stays where it is under single-site moves; only blocks can carry it elsewhere.

Relations  `metropolis_hastings` and `degenerate_gibbs` are such samplers; `epochs` runs them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
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
    @property
    def keeps_target(self) -> bool:
        """Whether every step leaves exp(−E/τ) as it is; where it does not, no verdict on mixing is given."""
        ...

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


Phrase = tuple[tuple[int, ...], ...]  # its spellings


@dataclass(frozen=True)
class LexicalConstraint:
    """A `Constraint`."""

    required: tuple[Phrase, ...] = ()
    forbidden: tuple[Phrase, ...] = ()

    def __call__(self, tokens_RT: Tensor, lengths_R: Tensor) -> Tensor:
        satisfied_R = torch.ones_like(lengths_R, dtype=torch.bool)
        for phrase in self.required:
            satisfied_R &= _any_spelling(tokens_RT, lengths_R, phrase)
        for phrase in self.forbidden:
            satisfied_R &= ~_any_spelling(tokens_RT, lengths_R, phrase)
        return satisfied_R


def contains(tokens_RT: Tensor, lengths_R: Tensor, spelling: Sequence[int]) -> Tensor:
    """(R,) whether the tokens of `spelling` stand in the sequence, next to each other."""
    size, longest = len(spelling), tokens_RT.shape[1]
    if not 0 < size <= longest:
        return torch.zeros_like(lengths_R, dtype=torch.bool)
    windows_RSN = tokens_RT.unfold(1, size, 1)
    inside_RS = torch.arange(windows_RSN.shape[1], device=tokens_RT.device) + size <= lengths_R[:, None]
    return ((windows_RSN == tokens_RT.new_tensor(spelling)).all(-1) & inside_RS).any(1)


def _any_spelling(tokens_RT: Tensor, lengths_R: Tensor, phrase: Phrase) -> Tensor:
    return torch.stack([contains(tokens_RT, lengths_R, spelling) for spelling in phrase]).any(0)
