"""A decoder that never writes certain tokens F: their probability is shared out among the others.

    P'(v | x_<t) = P(v | x_<t) / (1 − Σ_{f ∈ F} P(f | x_<t))   for v ∉ F,        P'(f | x_<t) = 0

Use it     where texts of a fixed length within one document are modelled: real ones never hold the end-of-text token,
           so its presence alone would tell generated ones apart.
Relations  `causal` scores by the same P'; `bundles.LanguageModel.without_special_tokens` is the way to it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from energylm.contracts import Decoder


def forbid_tokens(logits: Tensor, token_ids: Sequence[int]) -> Tensor:
    """The logits (…, V) of P', those of P changed in place; softmax renormalises."""
    logits[..., list(token_ids)] = float("-inf")
    return logits


class ForbiddenTokensDecoder:
    """`contracts.Decoder` of P' around a decoder of P."""

    def __init__(self, decoder: Decoder, *, token_ids: Sequence[int]) -> None:
        self.decoder, self.token_ids = decoder, tuple(token_ids)

    @property
    def vocabulary_size(self) -> int:
        return self.decoder.vocabulary_size

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        prefix, logits_BV = self.decoder.prefill(contexts)
        return prefix, forbid_tokens(logits_BV, self.token_ids)

    def fork(self, prefix: Any, *, copies: int, max_new_tokens: int) -> Any:
        return self.decoder.fork(prefix, copies=copies, max_new_tokens=max_new_tokens)

    def step(self, state: Any, tokens_R: Tensor) -> Tensor:
        return forbid_tokens(self.decoder.step(state, tokens_R), self.token_ids)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return self.decoder.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
