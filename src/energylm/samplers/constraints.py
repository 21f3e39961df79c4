"""Lexical constraints: phrases that every sequence of a chain must, or must not, contain.

    p'(y) ∝ p(y) · 1[every required phrase occurs in y] · 1[no forbidden phrase occurs in y]

A phrase is a list of token ids, and it may have several spellings (with and without a space before it, say), one of
which is enough. A proposal that breaks a constraint is rejected. Note what that does to mixing: a phrase that must
occur and occurs once stays where it is under single-site moves; only blocks can carry it elsewhere.

Relations  `metropolis_hastings` and `degenerate_gibbs` take it as their `constraint`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Phrase = tuple[tuple[int, ...], ...]  # its spellings


@dataclass(frozen=True)
class LexicalConstraint:
    """A `chains.Constraint`."""

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
