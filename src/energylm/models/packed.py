"""The decoding step of Llama's and GPT-2's forms on a CPU: weights packed once for oneDNN, and few operations.

    x ← x + W_o · attention(norm(x))
    x ← x + W_down · (swish(W_gate · norm(x)) ⊙ (W_up · norm(x)))        GPT-2: x + W_down · gelu(W_up · norm(x))

torch multiplies a few dozen rows by weights as they lie in memory, at about half the rate that the processor has. Here
weights are laid out in oneDNN's own blocks, and what follows a product (activation, gate, sum with the residual) is
done while it is still in registers. Queries, keys and values come from one product. What is linear is moved into the
weights: a norm's gain and shift, the scale of attention. A rotary pair (i, i + D/2) is made a pair of neighbours, which
no score notices, so a rotation is one complex product. What lies between two products is a call of `numerics.kernels`.

Contexts that were read last are kept: who asks for the very same ones again need not wait.
From `ROWS_A_THREAD` rows on, each thread steps rows of its own from the embedding to the logits, instead of all threads
sharing each of some hundred operations and waiting for the last at its end.

The packed weights are a second copy (at most `MOST_BYTES`), panels of them for few rows a third (`kernels.in_panels`),
made again when the network's own have changed. Networks whose every part is known to be of these forms are served, each
compared with a plain pass first (`why_not_packed`).

Relations  `shared_prefix` serves all other families; `decoders` chooses.
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from energylm.models.contexts import asks_for_own_passes, check_network, pad_contexts
from energylm.models.shared_prefix import SharedPrefixDecoder, why_not_plain
from energylm.models.shared_prefix_attention import KeptContexts, Prefix
from energylm.numerics.kernels import (
    LayerCache,
    PackedLinear,
    attend,
    cut_rows,
    in_panels,
    root_mean_square_norm,
    rotary_pairs,
    side_by_side,
)

LLAMA_FORMS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
ACTIVATIONS = {"silu": "swish", "swish": "swish", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}  # oneDNN's names
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # whose frequencies do not depend on the length of a text
MOST_BYTES = 8 << 30
ROWS_A_THREAD = 8  # with fewer, reading the weights once for each thread costs more than meeting at every product
SAMPLED_WEIGHTS = 64  # of each parameter, to notice a change that torch does not count


@dataclass(frozen=True)
class PackedLayer:
    query_key_value: PackedLinear
    output: PackedLinear
    gate: PackedLinear | None
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True)
class PackedNetwork:
    embedding_VE: Tensor
    positions_TE: Tensor | None  # learned, added to the embedding
    frequency: Tensor | None  # rotary: (D / 2,)
    rotary_scale: float
    layers: list[PackedLayer]
    head: PackedLinear | None  # None of a body without an output layer
    normalised: Callable[[Tensor], Tensor]  # without gain and shift
    activation: str
    heads: int
    kv_heads: int
    head_width: int
    contexts: KeptContexts = field(default_factory=KeptContexts)

    def rotation(self, position_B: Tensor) -> Tensor | None:
        """(B, D / 2) complex."""
        if self.frequency is None:
            return None
        angle = position_B[:, None].float() * self.frequency
        return torch.polar(torch.full_like(angle, self.rotary_scale), angle)

    def logits(self, x_RE: Tensor) -> Tensor:
        """(R, V) of the last layer's states."""
        assert self.head is not None  # asked of networks with an output layer only
        return self.head(self.normalised(x_RE))

    def fed_forward(self, layer: PackedLayer, x_RE: Tensor) -> Tensor:
        """What follows a layer's attention."""
        z_RE = self.normalised(x_RE)
        if layer.gate is None:
            inner_RF = layer.up(z_RE, then=self.activation)
        else:
            inner_RF = layer.up.times(z_RE, layer.gate(z_RE, then=self.activation))
        return layer.down.plus(inner_RF, x_RE)


@dataclass
class PackedPart:
    """What one thread steps: some contexts and copies, whose rows of one context and one head lie together (B contexts,
    K heads of keys, N copies, in this order)."""

    contexts: slice
    copies: slice
    prefix_keys: list[Tensor]  # of each layer, (B·K, D, P)
    prefix_values: list[Tensor]  # (B·K, P, D)
    prefix_lengths_B: Tensor
    position_B: Tensor  # of the next token
    keys: Tensor  # (layers, B, K, N, max_new_tokens, D): what each row has added
    values: Tensor
    filled: int = 0


@dataclass(frozen=True)
class PackedState:
    network: PackedNetwork
    contexts: int
    copies: int
    parts: list[PackedPart]


class PackedDecoder:
    """`contracts.ForkingDecoder` for networks for which `why_not_packed` finds no reason, on as many threads as torch
    has unless `threads` says otherwise."""

    def __init__(self, network: PreTrainedModel, *, threads: int | None = None) -> None:
        self.network, self.threads = network, threads
        self._reader = SharedPrefixDecoder(network)

    @property
    def vocabulary_size(self) -> int:
        return self._reader.vocabulary_size

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Prefix, Tensor]:
        ids_BP, lengths_B = pad_contexts(contexts, device=torch.device("cpu"))
        check_network(self.network, longest=ids_BP.shape[1])
        packed = packed_network(self.network)
        return packed.contexts.get(contexts, lambda: self._read(packed, ids_BP, lengths_B))

    @torch.no_grad()
    def _read(self, packed: PackedNetwork, ids_BP: Tensor, lengths_B: Tensor) -> tuple[Prefix, Tensor]:
        keys: list[Tensor] = []
        values: list[Tensor] = []
        as_it_was = slice(None) if packed.frequency is None else rotary_pairs(packed.head_width).argsort()

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys.append(key[:, 0, ..., as_it_was].transpose(1, 2).contiguous())  # and not all that was projected
            values.append(value[:, 0].transpose(1, 2).contiguous())
            return attend_alone(packed, layer, query, key, value)

        position_BP = torch.arange(ids_BP.shape[1]).expand_as(ids_BP)
        states_BPE = read_causally(packed, ids_BP[:, None], position_BP, attention)[:, 0]
        last_BE = states_BPE[torch.arange(len(ids_BP)), lengths_B - 1]
        return Prefix(keys, values, lengths_B), packed.logits(last_BE)

    @torch.no_grad()
    def fork(self, prefix: Prefix, *, copies: int, max_new_tokens: int) -> PackedState:
        check_network(self.network, longest=int(prefix.lengths_B.max()) + max_new_tokens)
        packed = packed_network(self.network)
        contexts, width = prefix.keys[0].shape[0], prefix.keys[0].shape[-1]
        order = slice(None) if packed.frequency is None else rotary_pairs(width)
        keys = [part[..., order].mT.contiguous() for part in prefix.keys]
        values = [part.contiguous() for part in prefix.values]
        threads = min(self.threads or torch.get_num_threads(), contexts * copies // ROWS_A_THREAD)
        parts = []
        for some, of_each in cut_rows(contexts, copies, threads):
            shape = (len(packed.layers), some.stop - some.start, packed.kv_heads, of_each.stop - of_each.start)
            part = PackedPart(
                contexts=some,
                copies=of_each,
                prefix_keys=[layer[some].flatten(0, 1) for layer in keys],
                prefix_values=[layer[some].flatten(0, 1) for layer in values],
                prefix_lengths_B=prefix.lengths_B[some],
                position_B=prefix.lengths_B[some],
                keys=torch.empty(*shape, max_new_tokens, width),
                values=torch.empty(*shape, max_new_tokens, width),
            )
            parts.append(part)
        return PackedState(packed, contexts, copies, parts)

    def step(self, state: PackedState, tokens_R: Tensor) -> Tensor:
        if len(state.parts) == 1:
            return _step(state.network, state.parts[0], tokens_R)
        tokens_BN = tokens_R.view(state.contexts, state.copies)
        logits_BNV = torch.empty(*tokens_BN.shape, self.vocabulary_size)

        def step_part(part: PackedPart) -> None:
            rows = (part.contexts, part.copies)
            logits_BNV[rows] = _step(state.network, part, tokens_BN[rows].flatten()).view_as(logits_BNV[rows])

        side_by_side(step_part, state.parts)
        return logits_BNV.flatten(0, 1)

    @torch.no_grad()
    def select(self, state: PackedState, rows_R: Tensor) -> None:
        rows_BN = rows_R.view(state.contexts, state.copies)
        for name in ("keys", "values"):
            for layer in range(len(state.network.layers)):
                self._select(state, [getattr(part, name)[layer] for part in state.parts], rows_BN)

    def _select(self, state: PackedState, held: list[Tensor], rows_BN: Tensor) -> None:
        """In `held`, what the parts have of one layer, (B, K, N, T, D) each."""
        filled = state.parts[0].filled
        whole = held[0].new_empty(*rows_BN.shape, held[0].shape[1], filled, held[0].shape[-1])
        for part, own in zip(state.parts, held, strict=True):
            whole[part.contexts, part.copies] = own[..., :filled, :].transpose(1, 2)
        chosen = whole.flatten(0, 1)[rows_BN]
        for part, own in zip(state.parts, held, strict=True):
            own[..., :filled, :] = chosen[part.contexts, part.copies].transpose(1, 2)

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return self._reader.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)


@torch.no_grad()
def _step(packed: PackedNetwork, part: PackedPart, tokens_R: Tensor) -> Tensor:
    """(R, V) logits after one more token in every row of a part."""
    x_RE = embedding(tokens_R, packed.embedding_VE)
    if packed.positions_TE is not None:
        x_RE += embedding(part.position_B.repeat_interleave(part.keys.shape[3]), packed.positions_TE)
    rotation_BD = packed.rotation(part.position_B)
    part.filled, part.position_B = part.filled + 1, part.position_B + 1
    for index, layer in enumerate(packed.layers):
        cache = LayerCache(
            prefix_keys=part.prefix_keys[index],
            prefix_values=part.prefix_values[index],
            prefix_lengths_B=part.prefix_lengths_B,
            keys=part.keys[index],
            values=part.values[index],
            filled=part.filled,
        )
        attended_RE = attend(layer.query_key_value(packed.normalised(x_RE)), rotation_BD, cache)
        x_RE = layer.output.plus(attended_RE, x_RE)
        x_RE = packed.fed_forward(layer, x_RE)
    return packed.logits(x_RE)


# index of a layer, queries (B, N, S, H, D), keys and values (B, N, S, K, D) → (B, N, S, H·D)
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def read_causally(packed: PackedNetwork, tokens_BNS: Tensor, position_BS: Tensor, attention: Attention) -> Tensor:
    """(B, N, S, E) states before the last norm."""
    contexts, _, new = tokens_BNS.shape
    x_BNSE = embedding(tokens_BNS, packed.embedding_VE)
    if packed.positions_TE is not None:
        x_BNSE += embedding(position_BS, packed.positions_TE)[:, None]
    x_RE, rotation = x_BNSE.flatten(0, 2), packed.rotation(position_BS.flatten())
    turned_heads = packed.heads + packed.kv_heads
    for index, layer in enumerate(packed.layers):
        projected = layer.query_key_value(packed.normalised(x_RE)).view(*tokens_BNS.shape, -1, packed.head_width)
        turned, value = projected[..., :turned_heads, :], projected[..., turned_heads:, :]
        if rotation is not None:
            pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))
            turned = torch.view_as_real(pairs * rotation.view(contexts, 1, new, 1, -1)).flatten(-2)
        attended = attention(index, turned[..., : packed.heads, :], turned[..., packed.heads :, :], value)
        x_RE = packed.fed_forward(layer, layer.output.plus(attended.reshape(len(x_RE), -1), x_RE))
    return x_RE.view_as(x_BNSE)


def attend_alone(packed: PackedNetwork, _layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rows without anything before them; scores are scaled already."""
    group = packed.heads // packed.kv_heads
    query, key, value = (part.flatten(0, 1).transpose(1, 2) for part in (query, key, value))
    key, value = (part.repeat_interleave(group, dim=1) if group > 1 else part for part in (key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0).transpose(1, 2)


def why_not_packed(network: PreTrainedModel) -> str | None:
    """None if `network` is exactly of a form that is written here and runs where packing pays, else the reason."""
    if type(network) not in (*LLAMA_FORMS, GPT2LMHeadModel):
        return "its family is of another form"
    if (reason := why_not_packable(network)) is not None:
        return reason
    if (reason := why_not_form(network.base_model)) is not None:
        return reason
    return compared_once(network, lambda: why_not_plain(PackedDecoder(network), network))


def why_not_form(body: Any) -> str | None:
    """None if all of a body of GPT-2's or Llama's family is written here, else the reason."""
    config = body.config
    if config.model_type == "gpt2":
        if config.activation_function not in ACTIVATIONS or config.add_cross_attention:
            return "it has an activation or attention that GPT-2 has not"
    elif config.hidden_act not in ACTIVATIONS or body.rotary_emb.rope_type not in FIXED_ROTATIONS:
        return "it has an activation or rotation that is not written here"
    elif getattr(config, "sliding_window", None) is not None:
        return "it slides an attention window"
    return None


def why_not_packable(network: PreTrainedModel) -> str | None:
    """None if the weights of `network` can be packed and its parts do no more than they say, else the reason."""
    if asks_for_own_passes.get():
        return "the network's own pass is asked for"
    if is_in_torch_dispatch_mode():
        return "somebody watches every operation: a counter, or a pretended device"
    if any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in network.parameters()):
        return "it is not in float32 on a CPU"
    if not torch.backends.mkldnn.is_available() or platform.machine().lower() not in ("x86_64", "amd64"):
        return "this build of torch has no oneDNN for this processor"
    if 4 * network.num_parameters() > MOST_BYTES:
        return f"its weights would take more than {MOST_BYTES >> 30} GB once more"
    for module in network.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return "a part of it has been given another forward pass or a hook"
        if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            return f"it has a layer of {type(module).__name__}"
    return "it is in training mode" if network.training else None


def compared_once(network: PreTrainedModel, compare: Callable[[], str | None]) -> str | None:
    """`compare()` on first use, and when parts have been replaced since."""
    parts = tuple(map(type, network.modules()))
    kept = _compared.get(network)
    if kept is None or kept[0] != parts:
        kept = _compared[network] = (parts, compare())
    return kept[1]


_compared: WeakKeyDictionary[PreTrainedModel, tuple[tuple[type, ...], str | None]] = WeakKeyDictionary()
_packed: WeakKeyDictionary[PreTrainedModel, tuple[tuple[object, ...], PackedNetwork]] = WeakKeyDictionary()


def packed_network(network: PreTrainedModel) -> PackedNetwork:
    """The packed weights of `network`: those kept, or new ones if it has changed since."""
    version, kept = weights_version(network), _packed.get(network)
    if kept is None or kept[0] != version:
        pack = _pack_gpt2 if network.config.model_type == "gpt2" else _pack_llama
        packed = pack(network.base_model, network.get_output_embeddings())
        *layers, packed = in_panels([*packed.layers, packed])
        kept = _packed[network] = (version, replace(packed, layers=layers))
    return kept[1]


def weights_version(network: PreTrainedModel) -> tuple[object, ...]:
    """Changes with the weights: torch counts what is written through a parameter, not what through its `.data`."""
    weights = list(network.parameters())
    samples = [weight.detach().flatten()[:: 1 + weight.numel() // SAMPLED_WEIGHTS].sum() for weight in weights]
    counts = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    return *counts, *torch.stack(samples).tolist()


@torch.no_grad()
def _pack_llama(body: Any, head: nn.Linear | None) -> PackedNetwork:
    config = body.config
    attention = body.layers[0].self_attn
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, attention.head_dim
    order = rotary_pairs(width)

    def in_pairs(values_E: Tensor) -> Tensor:
        return values_E.view(-1, width, *values_E.shape[1:])[:, order].reshape(values_E.shape)

    layers = []
    for layer in body.layers:
        attention, inner = layer.self_attn, layer.mlp
        scale, query, key, value = attention.scaling, attention.q_proj, attention.k_proj, attention.v_proj
        weight = torch.cat([in_pairs(query.weight * scale), in_pairs(key.weight), value.weight])
        bias = None
        if query.bias is not None:
            bias = torch.cat([in_pairs(query.bias * scale), in_pairs(key.bias), value.bias])
        second = layer.post_attention_layernorm
        layers.append(
            PackedLayer(
                query_key_value=PackedLinear.after(layer.input_layernorm, weight, bias),
                output=PackedLinear.of(attention.o_proj.weight, attention.o_proj.bias),
                gate=PackedLinear.after(second, inner.gate_proj.weight, inner.gate_proj.bias),
                up=PackedLinear.after(second, inner.up_proj.weight, inner.up_proj.bias),
                down=PackedLinear.of(inner.down_proj.weight, inner.down_proj.bias),
            )
        )
    return PackedNetwork(
        embedding_VE=body.embed_tokens.weight,
        positions_TE=None,
        frequency=body.rotary_emb.inv_freq,
        rotary_scale=body.rotary_emb.attention_scaling,
        layers=layers,
        head=None if head is None else PackedLinear.after(body.norm, head.weight, head.bias),
        normalised=partial(root_mean_square_norm, epsilon=config.rms_norm_eps),
        activation=ACTIVATIONS[config.hidden_act],
        heads=heads,
        kv_heads=kv_heads,
        head_width=width,
    )


@torch.no_grad()
def _pack_gpt2(body: Any, head: nn.Linear | None) -> PackedNetwork:
    config = body.config

    def turned(part: Conv1D) -> tuple[Tensor, Tensor]:
        return part.weight.T, part.bias

    layers = []
    for block in body.h:
        weight, bias = (values.clone() for values in turned(block.attn.c_attn))
        weight[: config.n_embd] *= block.attn.scaling
        bias[: config.n_embd] *= block.attn.scaling
        layers.append(
            PackedLayer(
                query_key_value=PackedLinear.after(block.ln_1, weight, bias),
                output=PackedLinear.of(*turned(block.attn.c_proj)),
                gate=None,
                up=PackedLinear.after(block.ln_2, *turned(block.mlp.c_fc)),
                down=PackedLinear.of(*turned(block.mlp.c_proj)),
            )
        )
    hidden, epsilon = (config.n_embd,), config.layer_norm_epsilon
    return PackedNetwork(
        embedding_VE=body.wte.weight,
        positions_TE=body.wpe.weight,
        frequency=None,
        rotary_scale=1.0,
        layers=layers,
        head=None if head is None else PackedLinear.after(body.ln_f, head.weight, head.bias),
        normalised=partial(layer_norm, normalized_shape=hidden, eps=epsilon),
        activation=ACTIVATIONS[config.activation_function],
        heads=config.n_head,
        kv_heads=config.n_head,
        head_width=config.n_embd // config.n_head,
    )
