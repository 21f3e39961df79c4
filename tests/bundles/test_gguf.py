"""GGUF conversion on a made-up file: a tiny Llama written in llama.cpp's layout comes back with the same logits."""

import json

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from transformers import LlamaConfig, LlamaForCausalLM

from energylm import LanguageModel
from energylm.bundles.causal_networks import load_gguf
from energylm.data.tokenizer import end_token_id, load_tokenizer, tokenizer_sha256, train_tokenizer
from energylm.errors import ModelError

HEADS, KEY_HEADS, WIDTH, LAYERS, INNER = 4, 2, 64, 2, 96
NAMES = {  # llama.cpp's name of each weight of a layer
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module", name="tokenizer")
def tokenizer_fixture():
    return tiny_tokenizer()


@pytest.fixture(scope="module", name="network")
def network_fixture(tokenizer):
    return tiny_network(tokenizer)


def tiny_tokenizer():
    return train_tokenizer(["the clerk counts the boats and the lamps"] * 9, vocabulary_size=288)


def tiny_network(tokenizer):
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def interleaved(weight, heads):
    """llama.cpp rotates neighbouring pairs of a head, transformers its two halves: rows change places."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def write_gguf(path, network, tokenizer, *, kind=GGMLQuantizationType.F32, rotate=interleaved):
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number < 5 else 1 for number in range(len(tokens))])
    writer.add_token_merges(merges_of(tokenizer))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}

    def add(name, weight):
        if weight.ndim == 2 and kind is not GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(weight))

    add("token_embd.weight", state["model.embed_tokens.weight"])
    add("output_norm.weight", state["model.norm.weight"])
    for layer in range(LAYERS):
        for short, long in NAMES.items():
            weight = state[f"model.layers.{layer}.{long}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = rotate(weight, HEADS if short == "attn_q" else KEY_HEADS)
            add(f"blk.{layer}.{short}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def merges_of(tokenizer):
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def logits(network):
    with torch.no_grad():
        return network(input_ids=torch.arange(5, 45)[None]).logits


def test_full_precision_comes_back_exactly(network, tokenizer, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", network, tokenizer)
    converted, its_tokenizer = load_gguf(tmp_path / "tiny.gguf")
    torch.testing.assert_close(logits(converted), logits(network), atol=1e-5, rtol=0)
    text = "the clerk counts 3 lamps"
    assert its_tokenizer(text).input_ids == tokenizer(text).input_ids
    assert its_tokenizer.decode(its_tokenizer(text).input_ids) == text
    assert not hasattr(converted.config, "quantization_config")


def test_unrotated_heads_are_caught(network, tokenizer, tmp_path):
    """Teeth: with the rows of queries and keys left in transformers' order the logits differ."""
    write_gguf(tmp_path / "wrong.gguf", network, tokenizer, rotate=lambda weight, heads: weight)
    converted, _ = load_gguf(tmp_path / "wrong.gguf")
    assert (logits(converted) - logits(network)).abs().max() > 1e-4


def test_quantised_weights_become_a_plain_folder_once(network, tokenizer, tmp_path, monkeypatch, capsys):
    """8-bit blocks: near the original; the folder is made by the first load and used by the second."""
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    path = tmp_path / "tiny.gguf"
    write_gguf(path, network, tokenizer, kind=GGMLQuantizationType.Q8_0)
    first = LanguageModel.from_pretrained(path)
    assert "converting tiny.gguf once" in capsys.readouterr().err
    again = LanguageModel.from_pretrained(path)
    assert "converting" not in capsys.readouterr().err
    [folder] = (tmp_path / "home" / "models").iterdir()
    assert (folder / "model.safetensors").is_file() and first.provenance["origin"] == "tiny.gguf"
    assert torch.equal(logits(first.model.network), logits(again.model.network))
    assert 0 < (logits(first.model.network) - logits(network)).abs().max() < 0.05


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match=r"broken\.gguf cannot be read as a GGUF") as caught:
        load_gguf(path)
    assert "\n" not in str(caught.value)
    (tmp_path / "notes.txt").write_text("a file")
    with pytest.raises(ModelError, match=r"give a model folder or a \.gguf file"):
        LanguageModel.from_pretrained(tmp_path / "notes.txt")


def test_its_tokenizer_can_be_had_without_its_weights(network, tokenizer, tmp_path, monkeypatch):
    """Two routes to one hash: from the file alone, and from the folder that it is converted to."""
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "tiny.gguf", network, tokenizer)
    alone = load_tokenizer(tmp_path / "tiny.gguf")
    assert tokenizer_sha256(alone) == tokenizer_sha256(LanguageModel.from_pretrained(tmp_path / "tiny.gguf").tokenizer)
    assert end_token_id(alone) == 0
