"""Decoder that reads each context once and steps all its continuations together.

Prefill runs the network as it is over the contexts (right-padded, B rows) and keeps their keys and values once; every
step runs it on R = B·copies rows of one token with `shared_prefix_attention`. Compared with
`generate(num_return_sequences=n)` this saves n − 1 prefills and n − 1 copies of the prefix cache, and turns R·H
matrix-vector products into B·H matrix products.

The attention implementation is a setting of the whole network, so it is switched for the time of one step only, under a
lock, and back; a saved config shows no trace of it.
"""

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from energylm.models.contexts import check_network, pad_contexts
from energylm.models.shared_prefix_attention import ATTENTION_NAME, Prefix, SharedPrefixCache, register

_SWITCHING = threading.RLock()


@dataclass
class SharedPrefixState:
    cache: SharedPrefixCache
    position_R: Tensor  # position of the next token of each row


class SharedPrefixDecoder:
    """`contracts.Decoder` for networks that hand their attention to transformers' attention interface."""

    def __init__(self, network: PreTrainedModel) -> None:
        register()
        self.network = network
        self._keeps_logits = "logits_to_keep" in inspect.signature(network.forward).parameters

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.get_output_embeddings().weight.shape[0])

    @torch.no_grad()
    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Prefix, Tensor]:
        ids_BP, lengths_B = pad_contexts(contexts, device=self.network.device)
        check_network(self.network, longest=ids_BP.shape[1])
        cache = DynamicCache()
        last_U, which_B = torch.unique(lengths_B - 1, return_inverse=True)
        output = self.network(
            input_ids=ids_BP,
            attention_mask=(torch.arange(ids_BP.shape[1], device=ids_BP.device) < lengths_B[:, None]).long(),
            position_ids=torch.arange(ids_BP.shape[1], device=ids_BP.device).expand_as(ids_BP),
            past_key_values=cache,
            use_cache=True,
            **({"logits_to_keep": last_U} if self._keeps_logits else {}),
        )
        index_B = which_B if self._keeps_logits else lengths_B - 1
        logits_BV = output.logits[torch.arange(len(contexts), device=ids_BP.device), index_B]
        return Prefix.of(cache, lengths_B), logits_BV

    def fork(self, prefix: Prefix, *, copies: int, max_new_tokens: int) -> SharedPrefixState:
        check_network(self.network, longest=int(prefix.lengths_B.max()) + max_new_tokens)
        cache = SharedPrefixCache(prefix, copies=copies, max_new_tokens=max_new_tokens)
        return SharedPrefixState(cache=cache, position_R=prefix.lengths_B.repeat_interleave(copies))

    def step(self, state: SharedPrefixState, tokens_R: Tensor) -> Tensor:
        logits_RV: Tensor = self.read(state, tokens_R[:, None]).logits[:, -1]
        return logits_RV

    @torch.no_grad()
    def read(self, state: SharedPrefixState, tokens_RS: Tensor) -> Any:
        """Append several tokens to every row at once; what the network says of each of them (a `ModelOutput`)."""
        steps_S = torch.arange(tokens_RS.shape[1], device=tokens_RS.device)
        with switched_attention(self.network, ATTENTION_NAME):
            output = self.network(
                input_ids=tokens_RS,
                attention_mask=torch.ones_like(tokens_RS),  # unread; without one transformers warns of padding
                position_ids=state.position_R[:, None] + steps_S,
                past_key_values=state.cache,
                use_cache=True,
                shared_prefix=state.cache,
            )
        state.position_R = state.position_R + tokens_RS.shape[1]
        return output

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        config = self.network.config.get_text_config()
        cache = 2 * config.num_hidden_layers * config.hidden_size * max_new_tokens
        activations = 16 * config.hidden_size + 4 * self.vocabulary_size  # one layer at a time; logits and their copies
        return int(4 * (cache + activations))


@contextmanager
def switched_attention(network: PreTrainedModel, name: str) -> Iterator[None]:
    """Within, the network attends by the implementation registered as `name`; no other thread switches meanwhile."""
    config = network.config
    with _SWITCHING:
        usual = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = usual
