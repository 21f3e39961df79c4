"""Which decoder serves a network: packed weights or shared prefix where proven right, else the plain one, said once.

    PlainDecoder             any causal network of transformers that keeps a cache: correct, and slower
    ProductDecoder           a product of language models (`ralm`): every step sums the logits of its factors
    ForbiddenTokensDecoder   a decoder that never writes certain tokens F; their probability goes to the others:

        P'(v | x_<t) = P(v | x_<t) / (1 − Σ_{f ∈ F} P(f | x_<t))   for v ∉ F,        P'(f | x_<t) = 0

The last is for texts of a fixed length within one document: real ones never hold the end-of-text token, so its presence
alone would tell generated ones apart.

Relations  `packed`, `shared_prefix` and `gated_convolution` have the fast decoders; `causal` scores by the same P'.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from energylm.contracts import ForkingDecoder
from energylm.models.contexts import check_network, pad_contexts, takes
from energylm.models.gated_convolution import ConvolutionDecoder, GatedConvolutionLM
from energylm.models.packed import PackedDecoder, why_not_packed
from energylm.models.ralm import RalmLM
from energylm.models.shared_prefix import SharedPrefixDecoder, why_not_shared_prefix
from energylm.numerics.categorical import widened
from energylm.progress import say

_announced: set[str] = set()  # families


def decoder_for(network: PreTrainedModel) -> ForkingDecoder:
    """The fastest decoder that is right for `network`."""
    if isinstance(network, GatedConvolutionLM):
        return ConvolutionDecoder(network)
    if isinstance(network, RalmLM):
        return ProductDecoder([decoder_for(network.base), decoder_for(network.residual)])
    if why_not_packed(network) is None:
        return PackedDecoder(network)
    reason = why_not_shared_prefix(network)
    if reason is None:
        return SharedPrefixDecoder(network)
    family = network.config.model_type
    if family not in _announced:
        _announced.add(family)
        say(f"energylm: {family} models are sampled by the plain decoder (correct, slower): {reason}")
    return PlainDecoder(network)


@dataclass
class ContextGroup:
    """Contexts of one length: their rows in the batch and the cache (of B_g or of B_g·copies rows)."""

    rows: Tensor
    length: int
    cache: Any


class PlainDecoder:
    """`contracts.ForkingDecoder` for every network, which runs with its own attention, masks and a copy of the
    context's cache for every continuation. Contexts of unequal length are never padded together (relative positions and
    windows that count padding would be silently wrong): equal lengths form a group, and a step goes through the
    groups."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self._takes_positions = takes(network, "position_ids")

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.get_output_embeddings().weight.shape[0])

    @torch.no_grad()
    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[list[ContextGroup], Tensor]:
        check_network(self.network, longest=max(map(len, contexts), default=0))
        groups, logits = [], [torch.empty(0)] * len(contexts)
        for length in sorted({len(context) for context in contexts}):
            rows = [row for row, context in enumerate(contexts) if len(context) == length]
            ids, _ = pad_contexts([contexts[row] for row in rows], device=self.network.device)
            cache = DynamicCache(config=self.network.config)
            for row, last in zip(rows, self._forward(ids, cache=cache, seen=0), strict=True):
                logits[row] = last
            groups.append(ContextGroup(rows=torch.tensor(rows, device=ids.device), length=length, cache=cache))
        return groups, torch.stack(logits)

    def fork(self, prefix: list[ContextGroup], *, copies: int, max_new_tokens: int) -> list[ContextGroup]:
        check_network(self.network, longest=max(group.length for group in prefix) + max_new_tokens)
        state = []
        for group in prefix:
            cache = copy.deepcopy(group.cache)
            cache.batch_repeat_interleave(copies)
            rows_GC = group.rows[:, None] * copies + torch.arange(copies, device=group.rows.device)
            state.append(ContextGroup(rows=rows_GC.flatten(), length=group.length, cache=cache))
        return state

    @torch.no_grad()
    def step(self, state: list[ContextGroup], tokens_R: Tensor) -> Tensor:
        parts = []
        for group in state:
            parts.append(self._forward(tokens_R[group.rows, None], cache=group.cache, seen=group.length))
            group.length += 1
        return torch.cat(parts)[torch.cat([group.rows for group in state]).argsort()]

    def select(self, state: list[ContextGroup], rows_R: Tensor) -> None:
        for group in state:
            within_R = torch.full_like(rows_R, -1)  # where a row stands in the cache of its group
            within_R[group.rows] = torch.arange(len(group.rows), device=rows_R.device)
            group.cache.batch_select_indices(within_R[rows_R[group.rows]])

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        config = self.network.config.get_text_config()
        cache = 2 * config.num_hidden_layers * config.hidden_size * (context_tokens + max_new_tokens)
        # Growing a cache copies it once a step, so count it twice.
        return int(4 * (2 * cache + 16 * config.hidden_size + 4 * self.vocabulary_size))

    def _forward(self, ids: Tensor, *, cache: Any, seen: int) -> Tensor:
        """Logits (rows, V) after the last of `ids`, which continue `seen` tokens in `cache`."""
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device).expand_as(ids)
        output = self.network(
            input_ids=ids,
            attention_mask=ids.new_ones(ids.shape[0], seen + ids.shape[1]),
            past_key_values=cache,
            use_cache=True,
            **({"position_ids": positions} if self._takes_positions else {}),
        )
        last: Tensor = output.logits[:, -1]
        return last


class ProductDecoder:
    """`contracts.ForkingDecoder`. Prefix and state are a list with one entry for each factor."""

    def __init__(self, factors: Sequence[ForkingDecoder]) -> None:
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
        return _sum([factor.step(own, tokens_R) for factor, own in zip(self.factors, state, strict=True)])

    def select(self, state: list[Any], rows_R: Tensor) -> None:
        for factor, own in zip(self.factors, state, strict=True):
            factor.select(own, rows_R)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return sum(
            factor.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
            for factor in self.factors
        )


def _sum(logits: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(map(widened, logits))).sum(0)


def forbid_tokens(logits: Tensor, token_ids: Sequence[int]) -> Tensor:
    """The logits (…, V) of P', those of P changed in place; softmax renormalises."""
    logits[..., list(token_ids)] = float("-inf")
    return logits


class ForbiddenTokensDecoder:
    """`contracts.ForkingDecoder` of P' around a decoder of P."""

    def __init__(self, decoder: ForkingDecoder, *, token_ids: Sequence[int]) -> None:
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

    def select(self, state: Any, rows_R: Tensor) -> None:
        self.decoder.select(state, rows_R)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return self.decoder.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
