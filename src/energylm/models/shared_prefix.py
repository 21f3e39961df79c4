"""Many continuations of a few contexts, each context read once: token by token, or all their hidden states in one pass.

Prefill runs the network as it is over the contexts (right-padded, B rows) and keeps their keys and values once; all
later tokens go through `shared_prefix_attention`, on R = B·copies rows.

    SharedPrefixDecoder    one token a step. Compared with `generate(num_return_sequences=n)` this saves n − 1 prefills
                           and n − 1 copies of the prefix cache, and turns R·H matrix-vector products into B·H matrix
                           products
    SharedPrefixEncoder    all tokens of all continuations at once, for a causal network without an output layer (a UniT
                           energy): with a context of P tokens and N continuations of S tokens that is P + N·S positions
                           instead of N·(P + S)

Families in `VERIFIED` are compared with a plain forward pass by the tests, windows shorter than the context included.
Any other family that offers the attention interface is compared on first use; one that differs, breaks, or slides a
window (which a short comparison would not reveal) is not served.

Relations  `decoders` chooses; its `PlainDecoder` serves the rest. `prefix_tree` shares prefixes of given sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from energylm.contracts import Decoder
from energylm.models.contexts import check_network, pad_contexts, takes
from energylm.models.shared_prefix_attention import (
    ATTENTION_NAME,
    Prefix,
    SharedPrefixCache,
    register,
    switched_attention,
)

VERIFIED = frozenset(
    "gpt2 llama qwen2 qwen3 gpt_neox opt phi3 starcoder2 olmo2 mistral gemma2 gemma3_text gpt_oss".split()
)
_CHECK_TOLERANCE = 1e-3  # relative to the largest logit; float32 rounding is a thousand times smaller


@dataclass
class SharedPrefixState:
    cache: SharedPrefixCache
    position_R: Tensor  # position of the next token of each row


class SharedPrefixDecoder:
    """`contracts.ForkingDecoder` for networks that hand their attention to transformers' attention interface."""

    def __init__(self, network: PreTrainedModel) -> None:
        register()
        self.network = network

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.get_output_embeddings().weight.shape[0])

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Prefix, Tensor]:
        last_U, index_B = torch.unique(
            torch.tensor([len(context) - 1 for context in contexts], device=self.network.device), return_inverse=True
        )
        keeps_logits = takes(self.network, "logits_to_keep")
        prefix, output = self.read_contexts(contexts, **({"logits_to_keep": last_U} if keeps_logits else {}))
        rows_B = torch.arange(len(contexts), device=index_B.device)
        return prefix, output.logits[rows_B, index_B if keeps_logits else last_U[index_B]]

    @torch.no_grad()
    def read_contexts(self, contexts: Sequence[Sequence[int]], **options: Any) -> tuple[Prefix, Any]:
        """Keys and values of the contexts, and what the network says of them right-padded (a `ModelOutput`)."""
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
            **options,
        )
        return Prefix.of(cache, lengths_B), output

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

    def select(self, state: SharedPrefixState, rows_R: Tensor) -> None:
        state.cache.select(rows_R)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        config = self.network.config.get_text_config()
        cache = config.num_hidden_layers * key_value_width(self.network) * max_new_tokens
        activations = 16 * config.hidden_size + 4 * self.vocabulary_size  # one layer at a time; logits and their copies
        return int(4 * (cache + activations))


class SharedPrefixEncoder:
    """Around a causal base model (no output layer) of a family that `can_share_prefix`."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self._reader = SharedPrefixDecoder(network)

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Prefix, Tensor]:
        """Keys and values of the contexts, and their hidden states (B, P, D), right-padded."""
        prefix, output = self._reader.read_contexts(contexts)
        return prefix, output.last_hidden_state

    def read(self, prefix: Prefix, tokens_RS: Tensor) -> Tensor:
        """(R, S, D) hidden states of continuations; row r continues context r // (R / B)."""
        copies = tokens_RS.shape[0] // prefix.lengths_B.shape[0]
        state = self._reader.fork(prefix, copies=copies, max_new_tokens=tokens_RS.shape[1])
        hidden_RSD: Tensor = self._reader.read(state, tokens_RS).last_hidden_state
        return hidden_RSD

    def bytes_per_row(self, *, context_tokens: int, new_tokens: int) -> int:
        """Memory that one more continuation costs: its keys and values, one layer's activations and attention."""
        config = self.network.config.get_text_config()
        cache = config.num_hidden_layers * key_value_width(self.network)
        activations = 16 * config.hidden_size
        attention = 4 * config.num_attention_heads * (context_tokens + new_tokens)  # scores and their copies
        return int(4 * new_tokens * (cache + activations + attention))


def key_value_width(network: PreTrainedModel) -> int:
    """Numbers that a layer keeps of a token: its keys and values, fewer where heads share them."""
    config = network.config.get_text_config()
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * head_width * (getattr(config, "num_key_value_heads", None) or heads))


def can_share_prefix(network: PreTrainedModel) -> bool:
    """Whether the family is one of those whose shared-prefix reading the tests compare with a plain one."""
    return takes(network, "position_ids") and network.config.model_type in VERIFIED


def why_not_shared_prefix(network: PreTrainedModel) -> str | None:
    """None if shared-prefix sampling is right for `network`, else the reason in words."""
    if not getattr(network, "_supports_attention_backend", False):
        return "this family does not offer transformers' attention interface"
    if not takes(network, "position_ids"):
        return "this family takes no position ids"
    if network.config.model_type in VERIFIED:
        return None
    if getattr(network.config.get_text_config(), "sliding_window", None) is not None:
        return "this family slides an attention window and has not been verified"
    return why_not_plain(SharedPrefixDecoder(network), network)


@torch.no_grad()
def why_not_plain(decoder: Decoder, network: PreTrainedModel) -> str | None:
    """None if `decoder` gives the logits of a plain forward pass of `network`, else the reason in words: two contexts
    of unequal length, two copies, three tokens."""
    vocabulary = decoder.vocabulary_size
    ids = (torch.arange(9, device=network.device) * 7 + 3) % vocabulary
    contexts = [ids[:6].tolist(), ids[2:5].tolist()]
    continuation = ids[:3]
    try:
        prefix, logits_BV = decoder.prefill(contexts)
        state = decoder.fork(prefix, copies=2, max_new_tokens=3)
        steps = [logits_BV.repeat_interleave(2, dim=0)]
        steps += [decoder.step(state, token.expand(4)) for token in continuation]
    except Exception as error:  # whatever an unknown family raises, the plain decoder serves it
        return f"the decoder failed on it ({type(error).__name__})"
    for row, context in enumerate(contexts):
        sequence = torch.cat([torch.tensor(context, device=ids.device), continuation])
        ids_1T = sequence[None]
        output = network(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T))  # without one transformers warns
        expected_TV: Tensor = output.logits[0, len(context) - 1 :]
        got_TV = torch.stack([logits[2 * row + 1] for logits in steps])
        if not expected_TV.isfinite().all():
            return "its logits are not finite"
        if not torch.allclose(got_TV, expected_TV, rtol=0, atol=_CHECK_TOLERANCE * float(expected_TV.abs().max())):
            return "its logits differ from those of a plain forward pass"
    return None
