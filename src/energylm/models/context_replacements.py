"""All one-token variants of given sequences and their energies, with gradients: what true conditionals are made of.

    −E(y') = Σ_t f(y'_t, h(y'_\\t))          y' = y with y_i = w, for every position i and every token w

The true conditional at one position needs |V| sequences and all T potentials of each (Goyal 2021, §6.2.1). Variants
that differ at i share every left state up to i and every right state down to i, so the readers branch there instead of
starting again: T(T − 1)/2 · V states a direction for all variants of a sequence, where T² · V separate readings take
T³ · V.

Use it     to train by pseudo-likelihood where the language cannot be enumerated.
Relations  `context_universe` gives the same numbers by enumeration; `objectives.pseudo_likelihood` reads them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.models.bilstm_context import BiLSTMContext, Reader, advance, linear
from energylm.models.context_universe import Universe

ENUMERATED = 20_000  # sequences of one length that are held at once


class Replacements:
    """What `network` says of single sequences; the face of `context_universe.Universe` without the likelihood."""

    def __init__(self, network: BiLSTMContext) -> None:
        self.network = network

    def cloze_logits(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V)"""
        return self.network.cloze_logits(tokens_BT)

    def replaced_energies(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): the energy of each sequence with its token t replaced by w."""
        network, length = self.network, tokens_BT.shape[1]
        left = _branching_sides(network.left, tokens_BT)
        right = _branching_sides(network.right, tokens_BT.flip(1))
        terms = []
        for t in range(length):
            left_HNB, right_HMB = left[t], right[length - 1 - t]  # the first is unchanged, then V a changed position
            own_V1B = network.head(left_HNB[:, :1], right_HMB[:, :1])
            # A change left of t meets the unchanged right side, and the other way round.
            by_left_HNB = network.join(left_HNB[:, 1:], right_HMB[:, :1])
            by_right_HMB = network.join(left_HNB[:, :1], right_HMB[:, 1:])
            weight_H1B = F.embedding(tokens_BT[:, t], network.output.weight).T[:, None]
            bias_B = F.embedding(tokens_BT[:, t], network.output.bias[:, None])[:, 0]
            left_IVB, right_IVB = (
                ((joined * weight_H1B).sum(0) + bias_B).unflatten(0, (-1, network.vocabulary_size))
                for joined in (by_left_HNB, by_right_HMB)
            )
            # From the right end positions count down.
            terms.append(torch.cat([left_IVB, own_V1B.transpose(0, 1), right_IVB.flip(0)]))
        return -torch.stack(terms).sum(0).permute(2, 0, 1)


def reading(network: BiLSTMContext, length: int) -> Universe | Replacements:
    """Sequences of `length` tokens by enumeration where there are few of them, else one by one."""
    few = network.vocabulary_size**length <= ENUMERATED
    return Universe(network, length) if few else Replacements(network)


def _branching_sides(reader: Reader, tokens_BT: Tensor) -> list[Tensor]:
    """For t = 0 … T − 1, (H, 1 + t · V, B): what the states after t tokens add; first of the sequence as it is, then
    with its token 0, 1, … t − 1 replaced by each token of the vocabulary."""
    hidden, cell = reader.nothing(1, len(tokens_BT))
    levels = [reader.side(hidden)]
    for t in range(tokens_BT.shape[1] - 1):
        sums_GNB = linear(reader.recurrence, hidden)
        follow = sums_GNB + reader.gates(tokens_BT[:, t]).T[:, None]
        branch = sums_GNB[:, :1] + reader.gates.weight.T[:, :, None]  # every token in the place of token t
        cells = torch.cat([cell, cell[:, :1].expand(-1, branch.shape[1], -1)], dim=1)
        hidden, cell = advance(torch.cat([follow, branch], dim=1), cells)
        levels.append(reader.side(hidden))
    return levels
