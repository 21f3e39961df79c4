"""Scores given by tables, in float64: an energy of every sequence, and a masked language model, consistent or not.

    E(x) = table[history_index(x)]                                                              lower = likelier
    logits at position i = table[i, code of the sequence with its hidden tokens replaced by V]

Energies   stand wherever `contracts.SequenceEnergy` is asked for. The table may require gradients, so that a loss
           summed over all sequences can be minimised exactly.
Masked     models stand wherever `contracts.MaskedModel` is asked for. Hidden tokens count as one more symbol, so a
           sequence of T tokens has (V + 1)^T readings, and the conditionals of different positions, or of different
           hidden sets, need not agree with any joint distribution: those of a real masked model need not either.
Relations  with a `tabular_language_model`, which is normalised, an energy makes a joint model whose partition function
           `exact` sums; with `energies.masked_lm` every energy of a masked model is a sum over an enumerable set.
"""

from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor

from energylm.randomness import derive_seed
from energylm.testing.enumeration import all_histories, history_count, history_index


class TabularEnergy:
    """`table` holds the energies of all sequences of 0 … length tokens, shorter ones first, each length in order."""

    def __init__(self, table: Tensor, *, vocabulary_size: int, length: int) -> None:
        if table.shape != (history_count(vocabulary_size, length),):
            raise ValueError(
                f"energies of up to {length} tokens of a vocabulary of {vocabulary_size} make a table of shape "
                f"({history_count(vocabulary_size, length)},), came {tuple(table.shape)}"
            )
        self.table = table
        self.vocabulary_size = vocabulary_size
        self.length = length

    @classmethod
    def random(cls, vocabulary_size: int, length: int, *, seed: int, scale: float = 1.0) -> Self:
        """Independent normal energies with standard deviation `scale`."""
        generator = np.random.default_rng(derive_seed(seed, "tabular energy"))
        table = scale * torch.from_numpy(generator.standard_normal(history_count(vocabulary_size, length)))
        return cls(table, vocabulary_size=vocabulary_size, length=length)

    @classmethod
    def from_function(cls, energy: Callable[[tuple[int, ...]], float], *, vocabulary_size: int, length: int) -> Self:
        values = [energy(sequence) for sequence in all_histories(vocabulary_size, length)]
        return cls(torch.tensor(values, dtype=torch.float64), vocabulary_size=vocabulary_size, length=length)

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        if len(lengths_B) and int(lengths_B.max()) > self.length:
            raise ValueError(f"the table knows sequences of at most {self.length} tokens, came {int(lengths_B.max())}")
        return self.table[history_index(tokens_BT, lengths_B, self.vocabulary_size)]


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
