"""Hidden states of many continuations of a few contexts, each context read once.

A causal network's hidden states of a context do not depend on what follows. They are computed once a context, and all
tokens of all its continuations are then read in a single pass through `shared_prefix_attention`: with a context of P
tokens and N continuations of S tokens that is P + N·S positions instead of N·(P + S).

Use it     to score drawn continuations with a causal network that has no output layer (a UniT energy).
Relations  `shared_prefix` is the same engine for language models, one token at a time.
"""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from energylm.models.contexts import check_network, pad_contexts
from energylm.models.decoders import VERIFIED
from energylm.models.shared_prefix import SharedPrefixDecoder
from energylm.models.shared_prefix_attention import Prefix


class SharedPrefixEncoder:
    """Around a causal base model (no output layer) of a family that `can_share_prefix`."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self._reader = SharedPrefixDecoder(network)

    @torch.no_grad()
    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Prefix, Tensor]:
        """Keys and values of the contexts, and their hidden states (B, P, D), right-padded."""
        ids_BP, lengths_B = pad_contexts(contexts, device=self.network.device)
        check_network(self.network, longest=ids_BP.shape[1])
        positions_BP = torch.arange(ids_BP.shape[1], device=ids_BP.device).expand_as(ids_BP)
        cache = DynamicCache()
        output = self.network(
            input_ids=ids_BP,
            attention_mask=(positions_BP < lengths_B[:, None]).long(),
            position_ids=positions_BP,
            past_key_values=cache,
            use_cache=True,
        )
        return Prefix.of(cache, lengths_B), output.last_hidden_state

    def read(self, prefix: Prefix, tokens_RS: Tensor) -> Tensor:
        """(R, S, D) hidden states of continuations; row r continues context r // (R / B)."""
        copies = tokens_RS.shape[0] // prefix.lengths_B.shape[0]
        state = self._reader.fork(prefix, copies=copies, max_new_tokens=tokens_RS.shape[1])
        hidden_RSD: Tensor = self._reader.read(state, tokens_RS).last_hidden_state
        return hidden_RSD

    def bytes_per_row(self, *, context_tokens: int, new_tokens: int) -> int:
        """Memory that one more continuation costs: its keys and values, one layer's activations and attention."""
        config = self.network.config.get_text_config()
        cache = 2 * config.num_hidden_layers * config.hidden_size
        activations = 16 * config.hidden_size
        attention = 4 * config.num_attention_heads * (context_tokens + new_tokens)  # scores and their copies
        return int(4 * new_tokens * (cache + activations + attention))


def can_share_prefix(network: PreTrainedModel) -> bool:
    """Whether the family is one of those whose shared-prefix reading the tests compare with a plain one."""
    takes_positions = "position_ids" in inspect.signature(network.forward).parameters
    return takes_positions and network.config.model_type in VERIFIED
