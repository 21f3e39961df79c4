"""The drawn source of a sampler's decisions: each row decides by its own numbers, whatever batch it travels in.

    decision d of row r  =  F⁻¹( u_r(d) )          u_r(d) = randomness.row_uniforms(keys, step=d)

`RowChoices` counts decisions for all rows together, which is enough where every row decides at every call. Rows of
chains have different lengths, so some wait while others still propose: `ChainChoices` counts each row's own decisions.
What is certain (a single possible choice, an acceptance of probability 1) uses no number there: a waiting row takes
empty decisions and stays in step with itself, so a chain goes the same way alone as in any batch.

Use it     for every sampler that takes `contracts.Choices`: Metropolis-Hastings, Gibbs, resampling.
Relations  `testing.enumerate_paths` gives the same code every decision in turn, with its probability, instead of one.
"""

from collections.abc import Callable

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
        drawn = [self._draw(each_RMV[:, m]) for m in range(each_RMV.shape[1])]
        return torch.stack(drawn, dim=1).reshape(logits.shape[:-1])

    def accept(self, log_probability_R: Tensor) -> Tensor:
        self._check_rows(log_probability_R)
        if log_probability_R.isnan().any():
            raise ValueError("accept: a log-probability is NaN; is an energy not finite?")
        return self._uniforms(lambda: log_probability_R < 0) < log_probability_R.double().exp()

    def _draw(self, logits_RV: Tensor) -> Tensor:
        return draw_categorical(logits_RV, self._uniforms(lambda: (logits_RV > float("-inf")).sum(-1) > 1))[0]

    def _uniforms(self, is_open: Callable[[], Tensor]) -> Tensor:
        """The next number of each row. `is_open` tells rows whose decision is not certain, for who counts by row."""
        self.decided += 1
        return row_uniforms(self._keys_R, step=self.decided - 1)

    def _check_rows(self, values: Tensor) -> None:
        if values.shape[0] != self._keys_R.shape[0]:
            raise ValueError(f"every call decides for all {self._keys_R.shape[0]} rows, came {values.shape[0]}")


class ChainChoices(RowChoices):
    """The same, where each row counts its own open decisions: `decided_R`, to be given back to resume."""

    def __init__(self, keys_R: Tensor, *, decided_R: Tensor | None = None) -> None:
        super().__init__(keys_R)
        self.decided_R = torch.zeros_like(keys_R) if decided_R is None else decided_R.clone()

    def _uniforms(self, is_open: Callable[[], Tensor]) -> Tensor:
        """Rows whose decision is certain get a number too, but keep it for the next."""
        uniform_R = row_uniforms(self._keys_R, step=self.decided_R)
        self.decided_R += is_open()
        return uniform_R
