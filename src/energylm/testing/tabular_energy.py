"""An energy given by a table: one number for every sequence of at most T tokens over a tiny vocabulary, in float64.

    E(x) = table[history_index(x)]            lower = likelier

Use it     in place of a network wherever `contracts.SequenceEnergy` is asked for. The table may require gradients, so
           that a loss summed over all sequences can be minimised exactly.
Relations  with a `tabular_language_model` it makes a joint model whose partition function `exact` sums.
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
