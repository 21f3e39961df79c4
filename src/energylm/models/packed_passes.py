"""Whole texts through packed weights on a CPU: BERT's form in both directions, and continuations of shared contexts.

    x ← norm(x + W_o · attention(x))                                     BERT's form
    x ← norm(x + W_down · gelu(W_up · x))

What `models.packed` does for a step of decoding. Every product reads the real tokens of all texts as one long list, so
that padding costs nothing; they are laid out as rows of equal length for attention alone. What follows a product is
done while it is in registers. Rows are shared out among threads that go through the layers by themselves, instead of
meeting some hundred times. Bodies of GPT-2's and Llama's forms read all tokens of continuations at once, over one copy
of their contexts, as `shared_prefix.SharedPrefixEncoder` does, and score texts and trees of prefixes.

Use it     through `encoder_states`, `prefix_encoder_for` and `CausalLanguageModel`, which leave the pass to the network
           wherever a part is not known to be of these forms, where gradients are asked for, and off the CPU. States
           agree to rounding.
Relations  `packed` has the packed product and the rule for when weights must be packed again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from transformers import (
    BertModel,
    ElectraModel,
    GPT2Model,
    LlamaModel,
    MistralModel,
    PreTrainedModel,
    Qwen2Model,
    RobertaModel,
)

from energylm.models.packed import (
    Attention,
    PackedNetwork,
    attend_alone,
    compared_once,
    packed_network,
    read_causally,
    weights_version,
    why_not_form,
    why_not_packable,
)
from energylm.models.shared_prefix import SharedPrefixEncoder
from energylm.models.shared_prefix_attention import Prefix
from energylm.numerics.kernels import PackedLinear, cut_rows, rotary_pairs, side_by_side

FORMS = (BertModel, ElectraModel, RobertaModel)
CAUSAL_FORMS = (GPT2Model, LlamaModel, MistralModel, Qwen2Model)
GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}  # oneDNN's names of the two
Inputs = Callable[[Tensor, Tensor], dict[str, Tensor]]  # of tokens (B, T), and which of them are real
TOKENS_A_THREAD = 256  # with fewer, meeting costs less than reading the weights once for each thread
_CHECK_TOLERANCE = 1e-4  # of the largest state


def encoder_states(
    encoder: PreTrainedModel,
    tokens_BT: Tensor,
    lengths_B: Tensor | None = None,
    *,
    inputs: Inputs | None = None,
    **options: Any,
) -> Tensor:
    """(B, T, D): the last hidden states of right-padded texts; those of padding mean nothing. Without lengths all
    tokens are real. `inputs` are what the encoder reads of tokens, if not these themselves; `options` go to the network
    where it reads them itself."""
    if lengths_B is None:
        lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1], device=tokens_BT.device)
    real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
    tokens_BT = tokens_BT.masked_fill(~real_BT, 0)
    given = {"input_ids": tokens_BT} if inputs is None else inputs(tokens_BT, real_BT)
    if tokens_BT.numel() and why_not_packed_encoder(encoder) is None:
        return packed_states(encoder, tokens_BT, real_BT, given)
    # With padding on the right every family's own positions are right for the real tokens.
    states_BTD: Tensor = encoder(**given, attention_mask=real_BT.long(), **options).last_hidden_state
    return states_BTD


@dataclass(frozen=True)
class Norm:
    weight: Tensor
    bias: Tensor
    epsilon: float

    @classmethod
    def of(cls, norm: Any) -> "Norm":
        return cls(norm.weight, norm.bias, norm.eps)

    def __call__(self, x_ND: Tensor) -> Tensor:
        return layer_norm(x_ND, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True)
class EncoderLayer:
    query_key_value: PackedLinear
    output: PackedLinear
    after_attention: Norm
    up: PackedLinear
    down: PackedLinear
    after: Norm


@torch.no_grad()
def packed_states(
    encoder: PreTrainedModel, tokens_BT: Tensor, real_BT: Tensor, given: dict[str, Tensor] | None = None
) -> Tensor:
    """(B, T, D), 0 at padding. `given` is what the network reads of the tokens, if not these themselves."""
    states_ND = packed_states_at(encoder, tokens_BT, real_BT, real_BT, given)
    states_BTD = states_ND.new_zeros(*real_BT.shape, states_ND.shape[1])
    states_BTD[real_BT] = states_ND
    return states_BTD


@torch.no_grad()
def packed_states_at(
    encoder: Any, tokens_BT: Tensor, real_BT: Tensor, wanted_BT: Tensor, given: dict[str, Tensor] | None = None
) -> Tensor:
    """(N, D): at the real positions that are wanted, row by row; after its attention the last layer sees no others."""
    layers = _packed_layers(encoder)
    x_BTD: Tensor = encoder.embeddings(**(given or {"input_ids": tokens_BT}))
    if hasattr(encoder, "embeddings_project"):  # ELECTRA's, where embeddings are narrower
        x_BTD = encoder.embeddings_project(x_BTD)

    def read(rows: slice) -> Tensor:
        return _read(encoder.config, layers, x_BTD[rows], real_BT[rows], wanted_BT[rows])

    return torch.cat(side_by_side(read, _cut(real_BT.sum(1), torch.get_num_threads())))


@torch.no_grad()
def _read(config: Any, layers: list[EncoderLayer], x_BTD: Tensor, real_BT: Tensor, wanted_BT: Tensor) -> Tensor:
    """All layers over the real tokens of some rows, with one thread or with torch's own."""
    rows, length = real_BT.shape
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    is_full = bool(real_BT.all())
    real_N = real_BT.flatten().nonzero()[:, 0]
    x_ND, wanted_N = x_BTD.flatten(0, 1)[real_N], wanted_BT.flatten()[real_N]
    projected_PE = x_ND.new_zeros(rows * length, 3 * heads * width)  # of padding 0, in every layer
    mask = None if is_full else real_BT[:, None, None]
    for number, layer in enumerate(layers, start=1):
        projected_NE = layer.query_key_value(x_ND)
        projected_PE = projected_NE if is_full else projected_PE.index_copy_(0, real_N, projected_NE)
        query, key, value = projected_PE.view(rows, length, 3, heads, width).permute(2, 0, 3, 1, 4)
        attended_BTD = scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        attended_PD = attended_BTD.flatten(0, 1)
        attended_ND = attended_PD if is_full else attended_PD.index_select(0, real_N)
        if number == len(layers) and not wanted_N.all():
            attended_ND, x_ND = attended_ND[wanted_N], x_ND[wanted_N]
        x_ND = layer.after_attention(layer.output.plus(attended_ND, x_ND))
        inner_NF = layer.up(x_ND, then="gelu", form=GELUS[config.hidden_act])
        x_ND = layer.after(layer.down.plus(inner_NF, x_ND))
    return x_ND


def _cut(tokens_B: Tensor, threads: int) -> list[slice]:
    """All rows in at most `threads` pieces of about as many tokens."""
    total_B = tokens_B.cumsum(0)
    parts = max(1, min(threads, int(total_B[-1]) // TOKENS_A_THREAD))
    targets = torch.arange(1, parts, device=total_B.device) * (total_B[-1] // parts)
    edges = [0, *(torch.searchsorted(total_B, targets) + 1).tolist(), len(tokens_B)]
    return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def why_not_packed_encoder(encoder: PreTrainedModel) -> str | None:
    """None if a pass of `encoder`, here and now, may be taken from packed weights, else the reason."""
    config = encoder.config
    if type(encoder) not in FORMS:
        return "its family is of another form"
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return "gradients or mixed precision are asked for"
    if (reason := why_not_packable(encoder)) is not None:
        return reason
    if config.hidden_act not in GELUS or config.is_decoder or getattr(config, "add_cross_attention", False):
        return "it has an activation or attention that BERT has not"
    return compared_once(encoder, lambda: _why_not_plain(encoder))


def _why_not_plain(encoder: Any) -> str | None:
    """Two texts of unequal length, packed and by the network itself."""
    tokens_BT = (torch.arange(12).view(2, 6) * 7 + 3) % encoder.config.vocab_size
    real_BT = torch.arange(6) < torch.tensor([[6], [4]])
    tokens_BT = tokens_BT.masked_fill(~real_BT, 0)

    def plain() -> Tensor:
        states_ND: Tensor = encoder(input_ids=tokens_BT, attention_mask=real_BT.long()).last_hidden_state[real_BT]
        return states_ND

    return _difference(lambda: packed_states(encoder, tokens_BT, real_BT)[real_BT], plain)


def _difference(packed: Callable[[], Tensor], plain: Callable[[], Tensor]) -> str | None:
    """None if both give the same states, else what is wrong with the packed ones."""
    expected = plain()
    try:
        states = packed()
    except Exception as error:  # whatever it is, the network itself serves
        return f"packing failed on it ({type(error).__name__})"
    agrees = torch.allclose(states, expected, rtol=0, atol=_CHECK_TOLERANCE * float(expected.abs().max()))
    return None if agrees else "its states differ from those of a plain forward pass"


_packed: WeakKeyDictionary[PreTrainedModel, tuple[tuple[object, ...], list[EncoderLayer]]] = WeakKeyDictionary()


def _packed_layers(encoder: Any) -> list[EncoderLayer]:
    version = weights_version(encoder)
    kept = _packed.get(encoder)
    if kept is None or kept[0] != version:
        kept = _packed[encoder] = (version, [_pack(layer) for layer in encoder.encoder.layer])
    return kept[1]


@torch.no_grad()
def _pack(layer: Any) -> EncoderLayer:
    own, output = layer.attention.self, layer.attention.output
    parts = (own.query, own.key, own.value)
    weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
    return EncoderLayer(
        query_key_value=PackedLinear.of(weight, bias),
        output=PackedLinear.of(output.dense.weight, output.dense.bias),
        after_attention=Norm.of(output.LayerNorm),
        up=PackedLinear.of(layer.intermediate.dense.weight, layer.intermediate.dense.bias),
        down=PackedLinear.of(layer.output.dense.weight, layer.output.dense.bias),
        after=Norm.of(layer.output.LayerNorm),
    )


class PackedPrefixEncoder(SharedPrefixEncoder):
    """For bodies for which `why_not_packed_body` finds no reason."""

    @torch.no_grad()
    def read(self, prefix: Prefix, tokens_RS: Tensor) -> Tensor:
        packed, contexts = packed_network(self.network), len(prefix.lengths_B)
        order = slice(None) if packed.frequency is None else rotary_pairs(packed.head_width)
        keys = [part[..., order].mT.contiguous() for part in prefix.keys]

        def attention(some: slice) -> Attention:
            own = Prefix([held[some] for held in keys], [held[some] for held in prefix.values], prefix.lengths_B[some])
            return partial(_attend_with_prefix, packed, own)

        tokens_BNS = tokens_RS.view(contexts, -1, tokens_RS.shape[1])
        position_BS = prefix.lengths_B[:, None] + torch.arange(tokens_BNS.shape[2])
        states_BNSE = _through_layers(packed, tokens_BNS, position_BS, attention)
        return _last_norm(self.network)(states_BNSE.flatten(0, 1))


@torch.no_grad()
def causal_logits(network: PreTrainedModel, tokens_BT: Tensor, *, keep: int) -> Tensor:
    """(B, keep, V): after the last `keep` tokens of each row, for networks for which `packed.why_not_packed` finds no
    reason. What stands on the right of a token does not matter to it, so padding there needs no mask."""
    packed = packed_network(network)
    position_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    states_BTE = _through_layers(packed, tokens_BT[:, None], position_BT, lambda _: partial(attend_alone, packed))[:, 0]
    return packed.logits(states_BTE[:, -keep:].flatten(0, 1)).view(len(tokens_BT), keep, -1)


@torch.no_grad()
def tree_logits(network: PreTrainedModel, tokens_BN: Tensor, depth_BN: Tensor, visible_BNN: Tensor) -> Tensor:
    """(B, N, V) after every node of trees of prefixes, for the same networks; a node sees what is `visible`."""
    packed = packed_network(network)

    def attention(some: slice) -> Attention:
        return partial(_attend_visible, packed, visible_BNN[some])

    states_BNE = _through_layers(packed, tokens_BN[:, None], depth_BN, attention)[:, 0]
    return packed.logits(states_BNE.flatten(0, 1)).view(*tokens_BN.shape, -1)


def _through_layers(
    packed: PackedNetwork, tokens_BNS: Tensor, position_BS: Tensor, attention: Callable[[slice], Attention]
) -> Tensor:
    """(B, N, S, E) before the last norm; `attention` is that of some contexts."""
    states_BNSE = torch.empty(*tokens_BNS.shape, packed.embedding_VE.shape[1])

    def read(part: tuple[slice, slice]) -> None:
        states_BNSE[part] = read_causally(packed, tokens_BNS[part], position_BS[part[0]], attention(part[0]))

    threads = min(torch.get_num_threads(), tokens_BNS.numel() // TOKENS_A_THREAD)
    side_by_side(read, cut_rows(len(tokens_BNS), tokens_BNS.shape[1], threads))
    return states_BNSE


def _attend_visible(
    packed: PackedNetwork, visible_BNN: Tensor, _layer: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Rows of nodes; scores are scaled already."""
    query, key, value = (part[:, 0].transpose(1, 2) for part in (query, key, value))
    grouped = packed.heads > packed.kv_heads
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=visible_BNN[:, None], scale=1.0, enable_gqa=grouped
    )
    return attended.transpose(1, 2)[:, None]


def _attend_with_prefix(
    packed: PackedNetwork, prefix: Prefix, layer: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Over one copy of the contexts, whose keys are (B, K, D, P) here, and what each row has added itself."""
    contexts, copies, new, heads, width = query.shape
    kv_heads, prefix_tokens = packed.kv_heads, prefix.keys[layer].shape[-1]
    group = heads // kv_heads
    query = query.unflatten(3, (kv_heads, group)).permute(0, 3, 1, 4, 2, 5).reshape(contexts * kv_heads, -1, width)
    key, value = (part.permute(0, 3, 1, 2, 4).reshape(-1, new, width) for part in (key, value))
    prefix_score = query @ prefix.keys[layer].flatten(0, 1)
    is_padding_BP = torch.arange(prefix_tokens) >= prefix.lengths_B[:, None]
    if is_padding_BP.any():
        prefix_score.view(contexts, -1, prefix_tokens).masked_fill_(is_padding_BP[:, None], float("-inf"))
    own_score = query.reshape(-1, group * new, width) @ key.mT
    own_score.view(-1, new, new).masked_fill_(torch.ones(new, new, dtype=torch.bool).triu(1), float("-inf"))
    weight = torch.cat([prefix_score.view(-1, group * new, prefix_tokens), own_score], dim=-1).softmax(-1)
    prefix_weight = weight[..., :prefix_tokens].reshape(contexts * kv_heads, -1, prefix_tokens)
    attended = torch.bmm(prefix_weight, prefix.values[layer].flatten(0, 1)).view(-1, group * new, width)
    attended = torch.baddbmm(attended, weight[..., prefix_tokens:], value)
    return attended.view(contexts, kv_heads, copies, group, new, width).permute(0, 2, 4, 1, 3, 5)


def _last_norm(body: Any) -> Callable[[Tensor], Tensor]:
    norm: Callable[[Tensor], Tensor] = body.ln_f if body.config.model_type == "gpt2" else body.norm
    return norm


def prefix_encoder_for(network: PreTrainedModel) -> SharedPrefixEncoder:
    """The reader of continuations for a family that `can_share_prefix`."""
    return PackedPrefixEncoder(network) if why_not_packed_body(network) is None else SharedPrefixEncoder(network)


def why_not_packed_body(body: PreTrainedModel) -> str | None:
    """None if continuations may be read from the packed weights of `body`, here and now, else the reason."""
    if type(body) not in CAUSAL_FORMS:
        return "its family is of another form"
    if torch.is_autocast_enabled("cpu"):
        return "mixed precision is asked for"
    if (reason := why_not_packable(body) or why_not_form(body)) is not None:
        return reason
    return compared_once(body, lambda: _why_not_shared(body))


def _why_not_shared(body: PreTrainedModel) -> str | None:
    """Two contexts of unequal length, two continuations each of three tokens, by both readers."""
    ids = (torch.arange(21) * 7 + 3) % body.config.vocab_size
    prefix, _ = SharedPrefixEncoder(body).prefill([ids[:6].tolist(), ids[6:9].tolist()])
    readers = (PackedPrefixEncoder(body), SharedPrefixEncoder(body))
    return _difference(*(partial(reader.read, prefix, ids[9:].view(4, 3)) for reader in readers))
