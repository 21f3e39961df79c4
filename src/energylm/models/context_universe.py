"""Every sequence of a small language at once: energies, log Z and conditionals, with gradients.

    −E(y) = Σ_t f(y_t, h(y_\\t))  for all V^T sequences y           log Z = log Σ_y exp(−E(y))
    p(y_t = w | y_\\t) = exp(−E(y with y_t = w)) / Σ_v exp(−E(y with y_t = v))            Goyal 2021, §6.2.1 and 6.2.2

There are only T · V^(T−1) contexts: V^t left states times V^(T−1−t) right states at position t. One pass over them says
everything about the language, whatever the number of training sequences: only looking them up grows with it.
Sequences are numbered in lexicographic order, as `testing.enumeration` lists them.

Use it     while V^T stays below some 100,000; `context_partition` needs no memory for all of them, but has no gradient.
Relations  `context_replacements` gives the same conditionals for single sequences of large languages.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.models.bilstm_context import BiLSTMContext, tree_states


class Universe:
    """What `network` says of all sequences of `length` tokens, at its present weights."""

    def __init__(self, network: BiLSTMContext, length: int) -> None:
        self.network, self.length = network, length

    @cached_property
    def logits(self) -> list[Tensor]:
        """At each position t, (V, V^t, V^(T−1−t)): f(·, h) for every left context and every right context."""
        every = [None] * (self.length - 1)
        left, right = (
            [reader.side(hidden) for hidden, _ in tree_states(reader, every, backwards=backwards)]
            for reader, backwards in ((self.network.left, False), (self.network.right, True))
        )
        return [self.network.head(left[t][:, :, None], right[self.length - 1 - t][:, None]) for t in range(self.length)]

    @cached_property
    def log_weights(self) -> Tensor:
        """(V^T,) minus the energy of every sequence."""
        return torch.stack([logits_VPQ.transpose(0, 1).flatten() for logits_VPQ in self.logits]).sum(0)

    @cached_property
    def log_partition(self) -> Tensor:
        return self.log_weights.logsumexp(0)

    def energies(self, tokens_BT: Tensor) -> Tensor:
        """(B,)"""
        index_B = _number(tokens_BT, self.network.vocabulary_size)
        return -F.embedding(index_B, self.log_weights[:, None])[:, 0]

    def replaced_energies(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): the energy of each sequence with its token t replaced by w."""
        vocabulary = self.network.vocabulary_size
        tables = [
            self.log_weights.view(vocabulary**t, vocabulary, -1).transpose(1, 2).reshape(-1, vocabulary)
            for t in range(self.length)
        ]
        return -self._at_contexts(tables, tokens_BT)

    def cloze_logits(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V)"""
        return self._at_contexts([logits_VPQ.flatten(1).T for logits_VPQ in self.logits], tokens_BT)

    def _at_contexts(self, tables: list[Tensor], tokens_BT: Tensor) -> Tensor:
        """(B, T, V) the rows of the context of every token; `F.embedding` adds up gradients in a fixed order."""
        contexts = [torch.cat([tokens_BT[:, :t], tokens_BT[:, t + 1 :]], dim=1) for t in range(self.length)]
        vocabulary = self.network.vocabulary_size
        rows = [F.embedding(_number(c, vocabulary), table) for c, table in zip(contexts, tables, strict=True)]
        return torch.stack(rows, dim=1)


def _number(tokens_BT: Tensor, vocabulary: int) -> Tensor:
    """(B,) the place of a sequence among all of its length, in lexicographic order."""
    place_T = vocabulary ** torch.arange(tokens_BT.shape[1] - 1, -1, -1, device=tokens_BT.device)
    return (tokens_BT * place_T).sum(1)
