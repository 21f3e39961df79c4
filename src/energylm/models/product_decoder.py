"""Decoder of a product of language models over one vocabulary: every step sums the logits of its factors, in float32 at
least.

Relations  `ralm` is such a product; each factor brings the decoder that is fastest for it (`decoders`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from energylm.contracts import Decoder
from energylm.numerics.blocks import widened


class ProductDecoder:
    """`contracts.Decoder`. Prefix and state are a list with one entry for each factor."""

    def __init__(self, factors: Sequence[Decoder]) -> None:
        self.factors = list(factors)

    @property
    def vocabulary_size(self) -> int:
        return self.factors[0].vocabulary_size

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[list[Any], Tensor]:
        prefixes, logits = zip(*(factor.prefill(contexts) for factor in self.factors), strict=True)
        return list(prefixes), _sum(logits)

    def fork(self, prefix: list[Any], *, copies: int, max_new_tokens: int) -> list[Any]:
        return [
            factor.fork(own, copies=copies, max_new_tokens=max_new_tokens)
            for factor, own in zip(self.factors, prefix, strict=True)
        ]

    def step(self, state: list[Any], tokens_R: Tensor) -> Tensor:
        logits = [factor.step(own, tokens_R) for factor, own in zip(self.factors, state, strict=True)]
        return _sum(logits)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return sum(
            factor.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
            for factor in self.factors
        )


def _sum(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(map(widened, logits))).sum(0)
