"""Proposals from a masked model: a block of positions is hidden, and each gets a token from its masked conditional.

    q(y' | y) = Π_{i ∈ I} q_i(y'_i | y_\\I)          q(y | y') = Π_{i ∈ I} q_i(y_i | y_\\I)          Goyal 2021, §6.4.1

I is the *hidden* set, chosen without looking at y; forward and reverse see the same y_\\I, whichever tokens come out
equal. q_i is the masked conditional at a temperature, cut to its nucleus and renormalised. A token outside the nucleus
has reverse probability 0: such a state can neither be left nor reached. So with probability `full_support`, decided by
a coin before anything is drawn, a row's move uses the whole vocabulary instead: each of the two moves keeps the target.

Use it     in `metropolis_hastings` (exact) and `degenerate_gibbs` (not).
Relations  `numerics.truncation` finds the nucleus.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.contracts import Choices
from energylm.numerics.categorical import log_sum_exp
from energylm.numerics.truncation import candidates


@dataclass(frozen=True)
class Proposed:
    tokens_RT: Tensor  # the proposed sequences
    log_forward_R: Tensor  # float64, log q(y' | y)
    log_reverse_R: Tensor  # float64, log q(y | y'); −inf where the way back is closed


@dataclass(frozen=True)
class MaskedProposal:
    """`allowed_V` marks the tokens that may be proposed at all: no special tokens, no forbidden ones."""

    allowed_V: Tensor
    truncation: Truncation = Truncation()  # noqa: RUF009  (frozen)
    full_support: float = 0.0

    def draw(self, tokens_RT: Tensor, hidden_RT: Tensor, logits_NV: Tensor, choices: Choices) -> Proposed:
        """New tokens at the hidden positions, whose logits (row by row) are `logits_NV`."""
        rows_N, positions_N = hidden_RT.nonzero(as_tuple=True)
        proposal_NV = self._proposal_logits(logits_NV, rows_N, rows=len(tokens_RT), choices=choices)
        new_N = self._choose(proposal_NV, hidden_RT, rows_N, choices)
        normaliser_N = log_sum_exp(proposal_NV, proposal_NV.amax(-1, keepdim=True))
        proposed_RT = tokens_RT.clone()
        proposed_RT[rows_N, positions_N] = new_N

        def log_probability(token_N: Tensor) -> Tensor:
            each_N = proposal_NV.gather(1, token_N[:, None])[:, 0].double() - normaliser_N
            return each_N.new_zeros(len(tokens_RT)).index_add_(0, rows_N, each_N)

        return Proposed(proposed_RT, log_probability(new_N), log_probability(tokens_RT[rows_N, positions_N]))

    def _proposal_logits(self, logits_NV: Tensor, rows_N: Tensor, *, rows: int, choices: Choices) -> Tensor:
        """(N, V) −inf for tokens that cannot be proposed."""
        allowed_NV = logits_NV.masked_fill(~self.allowed_V.to(logits_NV.device), float("-inf"))
        if not self.full_support:
            return self._truncated(allowed_NV)
        coin_R = torch.zeros(rows, dtype=torch.float64, device=logits_NV.device)
        coin_R[rows_N] = math.log(self.full_support)
        full_N = choices.accept(coin_R)[rows_N]
        return torch.where(full_N[:, None], allowed_NV / self.truncation.temperature, self._truncated(allowed_NV))

    def _truncated(self, allowed_NV: Tensor) -> Tensor:
        kept_NK, ids_NK = candidates(allowed_NV, self.truncation)
        return kept_NK if ids_NK is None else torch.full_like(allowed_NV, float("-inf")).scatter_(1, ids_NK, kept_NK)

    def _choose(self, proposal_NV: Tensor, hidden_RT: Tensor, rows_N: Tensor, choices: Choices) -> Tensor:
        """(N,) one token for each hidden position. A row with fewer of them than another takes empty decisions."""
        count_R = hidden_RT.sum(1)
        rows, most = len(hidden_RT), int(count_R.max())
        if int(count_R.min()) == most:
            return choices.categorical(proposal_NV.view(rows, most, -1)).flatten()
        within_N = (hidden_RT.cumsum(1) - 1)[hidden_RT]
        offered_RMV = proposal_NV.new_full((rows, most, proposal_NV.shape[1]), float("-inf"))
        offered_RMV[..., 0] = 0.0
        offered_RMV[rows_N, within_N] = proposal_NV
        return choices.categorical(offered_RMV)[rows_N, within_N]
