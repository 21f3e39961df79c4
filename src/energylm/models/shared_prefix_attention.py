"""Attention of many continuations over one copy of their context's keys and values.

    softmax([q·K_prefix ; q·K_suffix]) · [V_prefix ; V_suffix]

A context's keys and values are held once (B, H, P, D); the rows that continue it ask them in one matrix product of
N × P per head, and only what a row has added itself is stored per row (R, H, S, D). It is reached through transformers'
attention interface, so it serves any decoder that hands its attention to that interface, with grouped heads, sliding
windows, soft caps and attention sinks.

Relations  `shared_prefix` drives a network with it; `decoders` has the fallback for networks it cannot serve.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

ATTENTION_NAME = "energylm_shared_prefix"
KEPT_BYTES = 16 << 20  # of contexts that were read: two of SmolLM2-135M with 160 tokens
_SWITCHING = threading.RLock()


@dataclass(frozen=True)
class Prefix:
    """Keys and values of B contexts, per layer (B, H, P, D), right-padded to the longest; read once, shared by all."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths_B: Tensor

    @classmethod
    def of(cls, cache: Cache, lengths_B: Tensor) -> Self:
        """What a network has written of contexts into a cache; all its layers attend, so all have keys."""
        layers: list[Any] = cache.layers  # linear attention, which transformers also allows for, has none
        return cls([layer.keys for layer in layers], [layer.values for layer in layers], lengths_B)

    @property
    def padded(self) -> bool:
        return bool((self.lengths_B != self.keys[0].shape[2]).any())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


Reading = tuple[Prefix, Tensor]


class KeptContexts:
    """The last batches of contexts, with what was read of them. A batch is found again as a whole only: read in other
    company its numbers would be rounded otherwise, and a job that goes on after a crash would not be the same."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[int, ...], ...], Reading] = {}  # the newest last

    def get(self, contexts: Sequence[Sequence[int]], read: Callable[[], Reading]) -> Reading:
        """A prefix, which nobody changes, and logits (B, V), which anybody may."""
        batch = tuple(map(tuple, contexts))
        found = self._kept[batch] = self._kept.pop(batch) if batch in self._kept else read()
        while sum(prefix.nbytes + logits.nbytes for prefix, logits in self._kept.values()) > KEPT_BYTES:
            del self._kept[next(iter(self._kept))]
        return found[0], found[1].clone()


class SuffixLayer(CacheLayerMixin):
    """Preallocated keys and values of what each row has added, (R, H, max_new_tokens, D)."""

    is_sliding = False
    keys: Tensor  # never None: allocated at once
    values: Tensor

    def __init__(self, prefix_keys: Tensor, *, rows: int, max_new_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _, heads, self.prefix_tokens, width = prefix_keys.shape
        self.keys = prefix_keys.new_empty(rows, heads, max_new_tokens, width)
        self.values = torch.empty_like(self.keys)
        self.filled = 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: everything is allocated when the layer is made."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, self.filled = self.filled, self.filled + key_states.shape[2]
        self.keys[:, :, start : self.filled] = key_states
        self.values[:, :, start : self.filled] = value_states
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]

    def get_seq_length(self) -> int:
        return self.prefix_tokens + self.filled

    def get_max_length(self) -> int:
        return self.prefix_tokens + int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class SharedPrefixCache(Cache):
    """The prefix and one suffix layer per network layer."""

    def __init__(self, prefix: Prefix, *, copies: int, max_new_tokens: int) -> None:
        rows = prefix.lengths_B.shape[0] * copies
        super().__init__(layers=[SuffixLayer(keys, rows=rows, max_new_tokens=max_new_tokens) for keys in prefix.keys])
        self.prefix, self.copies, self.padded = prefix, copies, prefix.padded

    def select(self, rows_R: Tensor) -> None:
        """Row r gets what row rows_R[r] has added, a row of the same context; rows that stay are not touched."""
        changed_A = (rows_R != torch.arange(len(rows_R), device=rows_R.device)).nonzero()[:, 0]
        source_A = rows_R[changed_A]
        layers: list[Any] = self.layers  # all `SuffixLayer`s
        for layer in layers:
            for held in (layer.keys, layer.values):
                held[changed_A, :, : layer.filled] = held[source_A, :, : layer.filled]


def register() -> None:
    """Make the attention known to transformers under `ATTENTION_NAME`. It has no mask function on purpose: the padding
    of contexts, causality and windows are dealt with here."""
    AttentionInterface.register(ATTENTION_NAME, shared_prefix_attention)


@contextmanager
def switched_attention(network: PreTrainedModel, name: str) -> Iterator[None]:
    """Within, the network attends by the implementation registered as `name`; no other thread switches meanwhile. It is
    a setting of the whole network, so it is switched for one pass and back: a saved config shows no trace of it."""
    config = network.config
    with _SWITCHING:
        usual = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = usual


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,  # (R, H, Q, D): the Q newest tokens of every row
    key: Tensor,  # (R, H_kv, S, D): the rows' own keys, the Q newest last, from SuffixLayer.update
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shared_prefix: SharedPrefixCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    prefix = shared_prefix.prefix
    layer = cast(int, module.layer_idx)
    prefix_key, prefix_value = prefix.keys[layer], prefix.values[layer]
    rows, heads, queries, width = query.shape
    contexts, kv_heads, prefix_tokens = prefix_key.shape[:3]
    copies, group, suffix_tokens = rows // contexts, heads // kv_heads, key.shape[2]
    by_context = (contexts, kv_heads, copies, group, queries)  # the axes of one product with the prefix
    by_row = (contexts, copies, kv_heads, group, queries)  # the axes of the products with the rows' own keys
    query = query * (width**-0.5 if scaling is None else scaling)

    prefix_query = query.reshape(*by_row, width).transpose(1, 2).reshape(contexts, kv_heads, -1, width)
    prefix_score = (prefix_query @ prefix_key.mT).view(*by_context, prefix_tokens)
    suffix_score = query.reshape(rows, kv_heads, group * queries, width) @ key.mT
    score = torch.cat([prefix_score, suffix_score.view(*by_row, suffix_tokens).transpose(1, 2)], dim=-1)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if shared_prefix.padded or sliding_window is not None or queries > 1:
        hidden = _hidden(prefix.lengths_B, prefix_tokens, suffix_tokens, queries, sliding_window)
        score.masked_fill_(hidden[:, None, None, None], float("-inf"))
    if s_aux is not None:  # a sink takes its share of the attention and gives nothing
        sink = s_aux.view(1, kv_heads, 1, group, 1, 1).expand(*by_context, 1)
        score = torch.cat([score, sink.to(score.dtype)], dim=-1)
    weight = score.softmax(-1)

    prefix_weight = weight[..., :prefix_tokens].reshape(contexts, kv_heads, -1, prefix_tokens)
    from_prefix = (prefix_weight @ prefix_value).view(*by_context, width).transpose(1, 2)
    suffix_weight = weight[..., prefix_tokens : prefix_tokens + suffix_tokens].transpose(1, 2)
    from_suffix = suffix_weight.reshape(rows, kv_heads, group * queries, suffix_tokens) @ value
    attended = from_prefix + from_suffix.view(*by_row, width)
    return attended.reshape(rows, heads, queries, width).transpose(1, 2), None


def _hidden(
    lengths_B: Tensor, prefix_tokens: int, suffix_tokens: int, queries: int, sliding_window: int | None
) -> Tensor:
    """(B, Q, P + S) true where a key is padding, lies in the future of its query, or outside the query's window."""
    slot = torch.arange(prefix_tokens + suffix_tokens, device=lengths_B.device)
    lengths_B1 = lengths_B[:, None]
    in_prefix = slot < prefix_tokens
    key_position = torch.where(in_prefix, slot, slot - prefix_tokens + lengths_B1)[:, None, :]
    query_slot = torch.arange(suffix_tokens - queries, suffix_tokens, device=lengths_B.device)
    query_position = (lengths_B1 + query_slot)[:, :, None]
    hidden = (in_prefix & (slot >= lengths_B1))[:, None, :] | (key_position > query_position)
    if sliding_window is not None:
        hidden = hidden | (key_position <= query_position - sliding_window)
    return hidden
