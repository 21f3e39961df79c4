"""Mask-Predict: fill in all positions at once, then hide the least confident again and again, ever fewer.

    iteration 0      y_t = argmax p(· | nothing of the free positions)
    iteration i      hide the n_i = ⌊N (I − i) / I⌋ free positions of lowest confidence, predict them together

                                                    Ghazvininejad et al. 2019, §3; the baseline of Goyal 2021, table 6.6

A token's confidence is its log-probability when it was predicted. (Goyal 2021 §6.5 says that positions are hidden at
random; the method hides the least confident.) Nothing is drawn: this is a search for one likely sequence, what blocks
of degenerate Gibbs become at temperature 0. With several candidate lengths (length beam), each is a row, and the one
whose tokens have the highest mean log-probability is kept.

Relations  iteration 0 alone is the warm start of `metropolis_hastings` (algorithm 4, line 3).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from energylm.contracts import MaskedModel
from energylm.numerics.categorical import log_sum_exp


@dataclass(frozen=True)
class PredictionState:
    tokens_RT: Tensor
    lengths_R: Tensor
    free_RT: Tensor  # positions that are predicted
    log_prob_RT: Tensor  # float64, confidence of the predicted tokens, 0 elsewhere
    iteration: int  # done
    source_R: Tensor | None = None

    @property
    def score_R(self) -> Tensor:  # noqa: N802  (the axis letter)
        """Mean confidence of a row's predicted tokens."""
        return self.log_prob_RT.sum(1) / self.free_RT.sum(1).clamp(min=1)


@dataclass(frozen=True)
class MaskPredict:
    """`allowed_V` marks the tokens that may be predicted."""

    model: MaskedModel
    allowed_V: Tensor
    iterations: int = 10

    def init(
        self, tokens_RT: Tensor, lengths_R: Tensor, *, free_RT: Tensor, source_R: Tensor | None = None
    ) -> PredictionState:
        """Iteration 0: all free positions are hidden, whatever stands there."""
        log_prob_RT = torch.zeros(tokens_RT.shape, dtype=torch.float64, device=tokens_RT.device)
        state = PredictionState(tokens_RT, lengths_R, free_RT, log_prob_RT, 0, source_R)
        return self._predicted(state, free_RT)

    def step(self, state: PredictionState) -> PredictionState:
        """The next iteration; rows too short to hide anything stay as they are."""
        left = self.iterations - state.iteration
        count_R = state.free_RT.sum(1) * left // self.iterations
        confidence_RT = state.log_prob_RT.masked_fill(~state.free_RT, float("inf"))
        rank_RT = confidence_RT.argsort(dim=1, stable=True).argsort(dim=1)
        return self._predicted(state, rank_RT < count_R[:, None])

    def run(
        self, tokens_RT: Tensor, lengths_R: Tensor, *, free_RT: Tensor, source_R: Tensor | None = None
    ) -> PredictionState:
        state = self.init(tokens_RT, lengths_R, free_RT=free_RT, source_R=source_R)
        while state.iteration < self.iterations:
            state = self.step(state)
        return state

    def _predicted(self, state: PredictionState, hidden_RT: Tensor) -> PredictionState:
        tokens_RT, log_prob_RT = state.tokens_RT.clone(), state.log_prob_RT.clone()
        if hidden_RT.any():
            logits_NV = self.model.masked_logits(state.tokens_RT, state.lengths_R, hidden_RT, source_R=state.source_R)
            allowed_NV = logits_NV.masked_fill(~self.allowed_V.to(logits_NV.device), float("-inf"))
            best_N, token_N = allowed_NV.max(-1)
            tokens_RT[hidden_RT] = token_N
            log_prob_RT[hidden_RT] = best_N.double() - log_sum_exp(logits_NV, logits_NV.amax(-1, keepdim=True))
        return replace(state, tokens_RT=tokens_RT, log_prob_RT=log_prob_RT, iteration=state.iteration + 1)


def best_of_length_beam(state: PredictionState, group_R: Tensor) -> Tensor:
    """(G,) the row of highest mean log-probability among those of each group 0 … G − 1; the first of equals."""
    groups = range(int(group_R.max()) + 1)
    score_R = state.score_R
    return torch.stack([score_R.masked_fill(group_R != group, float("-inf")).argmax() for group in groups])
