"""The shared-prefix decoder, and the packed one, against plain forward passes, family by family.

Two routes: (a) one plain forward pass over context + continuation, no cache, no padding; (b) prefill, fork, step. Their
logits must agree to 1e-4 in float32 for contexts of unequal length and several copies with different continuations.
Windows are shorter than the contexts, so that a window ignored is a window noticed.
"""

import pytest
import torch
import transformers

from energylm.models import packed, shared_prefix_attention
from energylm.models.decoders import PlainDecoder
from energylm.models.packed import PackedDecoder, why_not_packed
from energylm.models.shared_prefix import VERIFIED, SharedPrefixDecoder

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN_HEADS = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
HEAD_WIDTH = {"head_dim": 8}
FAMILIES = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES | HEAD_WIDTH,
    "gpt_neox": PLAIN_HEADS,
    "opt": {
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48,
        "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "phi3": SIZES | {"sliding_window": 5},
    "starcoder2": SIZES | {"sliding_window": 5},
    "olmo2": SIZES,
    "mistral": SIZES | {"sliding_window": 5} | HEAD_WIDTH,
    "gemma2": SIZES | {"sliding_window": 5, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0} | HEAD_WIDTH,
    "gemma3_text": SIZES | {"sliding_window": 5, "query_pre_attn_scalar": 8} | HEAD_WIDTH,
    "gpt_oss": SIZES | {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2} | HEAD_WIDTH,
}  # fmt: skip
LONG = {"rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32}
PACKED = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {}),
    "llama, one head of keys, wide heads": ("llama", {"num_key_value_heads": 1, "head_dim": 16}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, slower rotation": ("llama", {"rope_parameters": {"rope_type": "linear"} | LONG}),
    "llama, rotation by frequency": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | LONG},
    ),
    "llama, scaled rotation": ("llama", {"rope_parameters": {"rope_type": "yarn"} | LONG}),
    "qwen2": ("qwen2", {}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
}  # name → family, and what differs from FAMILIES
CONTEXTS = [[5, 17, 3, 44, 90, 8, 23, 61, 70, 11], [9, 2, 31, 7], [13, 50, 6, 88, 29, 4, 77]]
COPIES, NEW = 3, 9


def make_network(family: str, **changes) -> transformers.PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **FAMILIES[family] | changes)
        network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in network.parameters():  # wide enough that attention is far from uniform
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(0.5, 0.3)
    return network.eval()


def continuation_tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 97, (len(CONTEXTS) * COPIES, NEW), generator=generator)


@torch.no_grad()
def plain_logits(network) -> torch.Tensor:
    """(R, NEW + 1, V) by one forward pass a row."""
    rows = []
    for row, tokens in enumerate(continuation_tokens()):
        context = CONTEXTS[row // COPIES]
        sequence = torch.cat([torch.tensor(context), tokens])
        rows.append(network(input_ids=sequence[None], use_cache=False).logits[0, len(context) - 1 :])
    return torch.stack(rows)


def decoder_logits(decoder) -> torch.Tensor:
    prefix, first = decoder.prefill(CONTEXTS)
    state = decoder.fork(prefix, copies=COPIES, max_new_tokens=NEW)
    steps = [first.repeat_interleave(COPIES, dim=0)]
    steps += [decoder.step(state, tokens) for tokens in continuation_tokens().T]
    return torch.stack(steps, dim=1)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("decoder_class", [SharedPrefixDecoder, PlainDecoder])
def test_logits_equal_a_plain_forward_pass(family, decoder_class):
    network = make_network(family)
    expected = plain_logits(network)
    assert expected.std() > 0.05  # the comparison is not between constants
    torch.testing.assert_close(decoder_logits(decoder_class(network)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", PACKED)
def test_packed_logits_equal_a_plain_forward_pass(name):
    family, changes = PACKED[name]
    network = make_network(family, **changes)
    assert why_not_packed(network) is None
    expected = plain_logits(network)
    assert expected.std() > 0.05
    torch.testing.assert_close(decoder_logits(PackedDecoder(network)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("copies", [COPIES, 1])  # threads share out copies, or contexts
def test_packed_logits_are_the_same_on_several_threads(copies, monkeypatch):
    network = make_network("llama")
    tokens = continuation_tokens()[: len(CONTEXTS) * copies].T

    def logits(decoder):
        prefix, _ = decoder.prefill(CONTEXTS)
        state = decoder.fork(prefix, copies=copies, max_new_tokens=NEW)
        return len(state.parts), torch.stack([decoder.step(state, of_step) for of_step in tokens])

    parts, expected = logits(PackedDecoder(network, threads=2))
    assert parts == 1  # too few rows for two
    usual = torch.get_num_threads()
    monkeypatch.setattr(packed, "ROWS_A_THREAD", 1)
    parts, of_threads = logits(PackedDecoder(network, threads=2))
    assert parts == 2 and torch.get_num_threads() == usual
    torch.testing.assert_close(of_threads, expected, atol=1e-5, rtol=0)
    # teeth: parts that get each other's rows
    right = packed.cut_rows
    monkeypatch.setattr(packed, "cut_rows", lambda *sizes: right(*sizes)[::-1])
    monkeypatch.setattr(packed.PackedDecoder, "step", crossed_step)
    assert (logits(PackedDecoder(network, threads=2))[1] - expected).abs().max() > 0.1


def crossed_step(self, state, tokens_R):
    """Deliberate mistake: rows go out to the parts in one order and come back in the other."""
    tokens_BN = tokens_R.view(state.contexts, state.copies)
    parts = [packed._step(state.network, part, tokens_BN[part.contexts, part.copies].flatten()) for part in state.parts]
    return torch.cat(parts)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_several_tokens_at_once_equal_one_by_one(family):
    """Scoring continuations reads all their tokens in one pass: causal among themselves, one prefix for all."""
    network = make_network(family)
    expected = plain_logits(network)[:, 1:]
    decoder = SharedPrefixDecoder(network)
    prefix, _ = decoder.prefill(CONTEXTS)
    state = decoder.fork(prefix, copies=COPIES, max_new_tokens=NEW)
    tokens = continuation_tokens()
    pieces = [decoder.read(state, part).logits for part in tokens.split([2, 1, NEW - 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-4, rtol=0)


def test_a_window_ignored_is_noticed(monkeypatch):
    """Deliberate mistake: the window dropped on its way into the attention."""
    right = shared_prefix_attention.shared_prefix_attention

    def without_window(*arguments, sliding_window=None, **options):
        return right(*arguments, **options)

    monkeypatch.setattr(shared_prefix_attention, "shared_prefix_attention", without_window)
    network = make_network("mistral")
    assert (decoder_logits(SharedPrefixDecoder(network)) - plain_logits(network)).abs().max() > 0.1


def test_padding_ignored_is_noticed(monkeypatch):
    """Deliberate mistake: the padding of shorter contexts attended to (of packed steps: `test_kernels`)."""
    monkeypatch.setattr(shared_prefix_attention.Prefix, "padded", False)
    network = make_network("gpt2")
    assert (decoder_logits(SharedPrefixDecoder(network)) - plain_logits(network)).abs().max() > 0.1


def test_every_verified_family_is_tested():
    assert set(FAMILIES) == VERIFIED
