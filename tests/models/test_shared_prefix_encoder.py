"""Hidden states of continuations read through one copy of their context, against one plain pass a row, by family."""

import pytest
import torch
import transformers
from torch.testing import assert_close

from energylm.models.shared_prefix import VERIFIED, SharedPrefixEncoder, can_share_prefix

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 8,
}  # fmt: skip
WINDOW = {"sliding_window": 5}
OWN_SIZES = {
    "gpt2": {
        "vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "opt": {
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
        "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "phi3": SIZES | WINDOW,
    "starcoder2": SIZES | WINDOW,
    "mistral": SIZES | WINDOW,
    "gemma2": SIZES | WINDOW | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": SIZES | WINDOW | {"query_pre_attn_scalar": 8},
    "gpt_oss": SIZES | WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip
NO_HEAD_WIDTH = ("llama", "qwen2", "gpt_neox", "olmo2", "phi3", "starcoder2")
CONTEXTS = [[5, 17, 3, 44, 90, 8, 23, 61, 70, 11], [9, 2, 31, 7], [13, 50, 6, 88, 29, 4, 77]]
COPIES, NEW = 3, 9


def make_network(family: str) -> transformers.PreTrainedModel:
    sizes = OWN_SIZES.get(family, SIZES)
    sizes = {key: size for key, size in sizes.items() if key != "head_dim" or family not in NO_HEAD_WIDTH}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **sizes)
        network = transformers.AutoModel.from_config(config, dtype=torch.float32)
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.3) if parameter.dim() > 1 else parameter.data.normal_(0.5, 0.3)
    return network.eval()


@pytest.mark.parametrize("family", sorted(VERIFIED))
@torch.no_grad()
def test_hidden_states_equal_a_plain_forward_pass(family):
    network = make_network(family)
    usual_attention = network.config._attn_implementation
    assert can_share_prefix(network)
    encoder = SharedPrefixEncoder(network)
    prefix, context_hidden = encoder.prefill(CONTEXTS)
    tokens = torch.randint(0, 97, (len(CONTEXTS) * COPIES, NEW), generator=torch.Generator().manual_seed(1))
    hidden = encoder.read(prefix, tokens)
    for row, new in enumerate(tokens):
        context = CONTEXTS[row // COPIES]
        whole = torch.cat([torch.tensor(context), new])
        expected = network(input_ids=whole[None], use_cache=False).last_hidden_state[0]
        scale = float(expected.abs().max())
        assert_close(hidden[row] / scale, expected[len(context) :] / scale, atol=1e-5, rtol=0)
        assert_close(
            context_hidden[row // COPIES, : len(context)] / scale, expected[: len(context)] / scale, atol=1e-5, rtol=0
        )
    # Teeth: continuations given to one another's contexts are noticed.
    wrong = encoder.read(prefix, tokens.roll(COPIES, dims=0)).roll(-COPIES, dims=0)
    assert (wrong - hidden).abs().max() / scale > 1e-3
    assert network.config._attn_implementation == usual_attention  # nothing of ours stays behind


def test_a_prefix_may_be_read_again():
    network = make_network("gpt2")
    encoder = SharedPrefixEncoder(network)
    prefix, _ = encoder.prefill(CONTEXTS)
    tokens = torch.randint(0, 97, (6, NEW), generator=torch.Generator().manual_seed(1))
    assert torch.equal(encoder.read(prefix, tokens), encoder.read(prefix, tokens))


def test_a_row_costs_more_for_longer_text():
    encoder = SharedPrefixEncoder(make_network("gpt2"))
    short, long = (encoder.bytes_per_row(context_tokens=10, new_tokens=new) for new in (5, 10))
    assert long > 2 * short > 0


def test_families_that_are_not_verified_are_read_plainly():
    config = transformers.AutoConfig.for_model(
        "bloom", vocab_size=97, hidden_size=32, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2
    )
    assert not can_share_prefix(transformers.AutoModel.from_config(config))
