"""The fallback decoder: correct for any causal network of transformers that keeps a cache, and slower.

Each context's cache is copied for every continuation and the network runs with its own attention and masks. Contexts of
unequal length are never padded together (relative positions and windows that count padding would be silently wrong):
equal lengths form a group, and a step goes through the groups.
"""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from energylm.models.contexts import check_network, pad_contexts


@dataclass
class ContextGroup:
    """Contexts of one length: their places in the batch and the cache (of B_g or of B_g·copies rows)."""

    places: Tensor
    length: int
    cache: Any


class PlainDecoder:
    """`contracts.Decoder` for every network."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self._takes_positions = "position_ids" in inspect.signature(network.forward).parameters

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.get_output_embeddings().weight.shape[0])

    @torch.no_grad()
    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[list[ContextGroup], Tensor]:
        check_network(self.network, longest=max(map(len, contexts), default=0))
        groups, logits = [], [torch.empty(0)] * len(contexts)
        for length in sorted({len(context) for context in contexts}):
            places = [place for place, context in enumerate(contexts) if len(context) == length]
            ids, _ = pad_contexts([contexts[place] for place in places], device=self.network.device)
            cache = DynamicCache(config=self.network.config)
            last = self._forward(ids, cache=cache, seen=0)
            for row, place in enumerate(places):
                logits[place] = last[row]
            groups.append(ContextGroup(places=torch.tensor(places, device=ids.device), length=length, cache=cache))
        return groups, torch.stack(logits)

    def fork(self, prefix: list[ContextGroup], *, copies: int, max_new_tokens: int) -> list[ContextGroup]:
        check_network(self.network, longest=max(group.length for group in prefix) + max_new_tokens)
        state = []
        for group in prefix:
            cache = copy.deepcopy(group.cache)
            cache.batch_repeat_interleave(copies)
            copies_of_places = group.places[:, None] * copies + torch.arange(copies, device=group.places.device)
            state.append(ContextGroup(places=copies_of_places.flatten(), length=group.length, cache=cache))
        return state

    @torch.no_grad()
    def step(self, state: list[ContextGroup], tokens_R: Tensor) -> Tensor:
        logits_RV: Tensor | None = None
        for group in state:
            last = self._forward(tokens_R[group.places, None], cache=group.cache, seen=group.length)
            group.length += 1
            if logits_RV is None:
                logits_RV = last.new_empty(tokens_R.shape[0], last.shape[-1])
            logits_RV[group.places] = last
        assert logits_RV is not None
        return logits_RV

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
