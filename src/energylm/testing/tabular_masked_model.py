"""A masked language model given by a table: logits at every position for every way to hide tokens, in float64.

    logits at position i = table[i, code of the sequence with its hidden tokens replaced by V]

Hidden tokens count as one more symbol, so a sequence of T tokens has (V + 1)^T readings, and the conditionals of
different positions, or of different hidden sets, need not agree with any joint distribution: that of a real masked
model need not either.

Use it     wherever `contracts.MaskedModel` is asked for; with `energies.masked_lm` every energy is a sum over
           an enumerable set, and `transitions` proves samplers on it.
Relations  `tabular_language_model` is normalised; this is not, on purpose.
"""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from energylm.randomness import derive_seed


class TabularMaskedModel:
    """`table` (S, T, (V+1)^T, V) for S sources; a model without sources has one. All sequences have T tokens or fewer;
    a shorter one reads as if hidden tokens followed it."""

    def __init__(self, table: Tensor, *, vocabulary_size: int, length: int) -> None:
        readings = (vocabulary_size + 1) ** length
        if table.dim() != 4 or table.shape[1:] != (length, readings, vocabulary_size):
            raise ValueError(
                f"a masked model of {length} tokens over a vocabulary of {vocabulary_size} has a table of shape "
                f"(sources, {length}, {readings}, {vocabulary_size}), came {tuple(table.shape)}"
            )
        self.table, self.length = table, length
        self._vocabulary_size = vocabulary_size

    @classmethod
    def random(cls, vocabulary_size: int, length: int, *, seed: int, scale: float = 1.0, sources: int = 1) -> Self:
        """Independent normal logits with standard deviation `scale`."""
        numbers = np.random.default_rng(derive_seed(seed, "tabular masked model"))
        shape = (sources, length, (vocabulary_size + 1) ** length, vocabulary_size)
        return cls(
            scale * torch.from_numpy(numbers.standard_normal(shape)), vocabulary_size=vocabulary_size, length=length
        )

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary_size

    @property
    def mask_token_id(self) -> int:
        return self._vocabulary_size

    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        columns = torch.arange(tokens_RT.shape[1])
        if tokens_RT.shape[1] > self.length or (hidden_RT & (columns >= lengths_R[:, None])).any():
            raise ValueError(f"sequences have at most {self.length} tokens, and only their own tokens can be hidden")
        read_RT = tokens_RT.masked_fill(hidden_RT | (columns >= lengths_R[:, None]), self.mask_token_id)
        missing = self.length - tokens_RT.shape[1]
        read_RT = torch.nn.functional.pad(read_RT, (0, missing), value=self.mask_token_id)
        power_T = (self._vocabulary_size + 1) ** torch.arange(self.length - 1, -1, -1)
        code_R = (read_RT * power_T).sum(1)
        rows_N, positions_N = hidden_RT.nonzero(as_tuple=True)
        source_N = torch.zeros_like(rows_N) if source_R is None else source_R[rows_N]
        return self.table[source_N, positions_N, code_R[rows_N]]
