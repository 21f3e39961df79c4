"""Short sequences of token ids held in memory, of several lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Right-padded; what stands after the end of a sequence means nothing."""

    tokens_NT: Tensor
    lengths_N: Tensor

    @classmethod
    def of_one_length(cls, tokens_NT: Tensor) -> Self:
        return cls(tokens_NT, torch.full((len(tokens_NT),), tokens_NT.shape[1]))

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def __getitem__(self, rows: slice | Tensor) -> "Sequences":
        return Sequences(self.tokens_NT[rows], self.lengths_N[rows])

    def by_length(self, *, at_once: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (G,) of one length and their tokens (G, length) without padding, `at_once` rows at most."""
        for length in self.lengths_N.unique().tolist():
            rows_G = (self.lengths_N == length).nonzero()[:, 0]
            for part_G in rows_G.split(at_once or len(rows_G)):
                yield part_G, self.tokens_NT[part_G, :length]
