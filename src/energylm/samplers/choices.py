"""The drawn source of a sampler's decisions: each row decides by its own numbers, whatever batch it travels in.

    decision d of row r  =  F⁻¹( u_r(d) )          u_r(d) = randomness.row_uniforms(keys, step=d)

Use it     for every sampler that takes `contracts.Choices`: Metropolis-Hastings, Gibbs, resampling.
Relations  `testing.enumerate_paths` gives the same code every decision in turn, with its probability, instead of one.
"""

import torch
from torch import Tensor

from energylm.numerics.categorical import draw_categorical
from energylm.randomness import row_uniforms


class RowChoices:
    """`RowChoices(row_keys(seed, group_R, member_R))`. `decided` counts the decisions taken: give it back to resume."""

    def __init__(self, keys_R: Tensor, *, decided: int = 0) -> None:
        self._keys_R = keys_R
        self.decided = decided

    def categorical(self, logits: Tensor) -> Tensor:
        self._check_rows(logits)
        if not torch.isfinite(logits.amax(-1)).all():  # NaN, +inf, or a row without any possible choice
            raise ValueError(
                "categorical: a row of logits has no finite maximum; each needs one possible choice, no NaN"
            )
        each_RMV = logits.reshape(logits.shape[0], -1, logits.shape[-1])
        drawn = [draw_categorical(each_RMV[:, m], self._uniforms())[0] for m in range(each_RMV.shape[1])]
        return torch.stack(drawn, dim=1).reshape(logits.shape[:-1])

    def accept(self, log_probability_R: Tensor) -> Tensor:
        self._check_rows(log_probability_R)
        if log_probability_R.isnan().any():
            raise ValueError("accept: a log-probability is NaN; is an energy not finite?")
        return self._uniforms() < log_probability_R.double().exp()

    def _uniforms(self) -> Tensor:
        self.decided += 1
        return row_uniforms(self._keys_R, step=self.decided - 1)

    def _check_rows(self, values: Tensor) -> None:
        if values.shape[0] != self._keys_R.shape[0]:
            raise ValueError(f"every call decides for all {self._keys_R.shape[0]} rows, came {values.shape[0]}")
