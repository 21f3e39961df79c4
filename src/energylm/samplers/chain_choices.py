"""Decisions of chains that travel together but do not decide equally often: each row counts its own.

    decision d_r of row r  =  F⁻¹( u_r(d_r) )            d_r grows with every decision of row r that is not certain

Rows of a batch have different lengths, so some wait while others still propose. What is certain (a single possible
choice, an acceptance of probability 1) uses no number: a waiting row takes empty decisions and stays in step with
itself, so a chain goes the same way alone as in any batch.

Relations  `choices.RowChoices` counts for all rows together, which is enough where every row decides at every call.
"""

import torch
from torch import Tensor

from energylm.numerics.categorical import draw_categorical
from energylm.randomness import row_uniforms


class ChainChoices:
    """`contracts.Choices`. `decided_R` counts the decisions taken: give it back to resume."""

    def __init__(self, keys_R: Tensor, *, decided_R: Tensor | None = None) -> None:
        self._keys_R = keys_R
        self.decided_R = torch.zeros_like(keys_R) if decided_R is None else decided_R.clone()

    def categorical(self, logits: Tensor) -> Tensor:
        each_RMV = logits.reshape(len(logits), -1, logits.shape[-1])
        if not torch.isfinite(each_RMV.amax(-1)).all():  # NaN, +inf, or a row without any possible choice
            raise ValueError(
                "categorical: a row of logits has no finite maximum; each needs one possible choice, no NaN"
            )
        open_RM = (each_RMV > float("-inf")).sum(-1) > 1
        drawn = [
            draw_categorical(each_RMV[:, place], self._uniforms(open_RM[:, place]))[0]
            for place in range(each_RMV.shape[1])
        ]
        return torch.stack(drawn, dim=1).reshape(logits.shape[:-1])

    def accept(self, log_probability_R: Tensor) -> Tensor:
        if log_probability_R.isnan().any():
            raise ValueError("accept: a log-probability is NaN; is an energy not finite?")
        return self._uniforms(log_probability_R < 0) < log_probability_R.double().exp()

    def _uniforms(self, open_R: Tensor) -> Tensor:
        """The next number of each row; rows whose decision is certain get one too, but keep it for the next."""
        uniform_R = row_uniforms(self._keys_R, step=self.decided_R)
        self.decided_R += open_R
        return uniform_R
