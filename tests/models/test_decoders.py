"""Which decoder serves which network, and that the choice is safe for families nobody has verified."""

import pytest
import torch
import transformers
from transformers.models.gpt2 import modeling_gpt2

from energylm.errors import ModelError
from energylm.models import decoders, shared_prefix
from energylm.models.decoders import PlainDecoder, decoder_for
from energylm.models.gated_convolution import ConvolutionDecoder
from energylm.models.packed import PackedDecoder
from energylm.models.presets import build_network
from energylm.models.shared_prefix import SharedPrefixDecoder, why_not_shared_prefix
from energylm.models.shared_prefix_attention import ATTENTION_NAME

CONTEXTS = [[1, 2, 3, 4, 5], [6, 7]]


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def bloom():
    config = transformers.BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=2)
    return transformers.BloomForCausalLM(config).eval()


def test_a_verified_family_shares_prefixes_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(decoders, "why_not_packed", lambda network: "its family is of another form")
    network = gpt2()
    decoder = decoder_for(network)
    assert isinstance(decoder, SharedPrefixDecoder)
    before = network.config._attn_implementation
    prefix, _ = decoder.prefill(CONTEXTS)
    decoder.step(decoder.fork(prefix, copies=2, max_new_tokens=2), torch.zeros(4, dtype=torch.int64))
    assert network.config._attn_implementation == before != ATTENTION_NAME


def test_a_family_without_the_interface_falls_back_and_says_so_once(capsys):
    decoders._announced.clear()
    network = bloom()
    assert isinstance(decoder_for(network), PlainDecoder)
    assert isinstance(decoder_for(network), PlainDecoder)
    assert capsys.readouterr().err.count("plain decoder (correct, slower)") == 1


def test_the_fallback_is_right_for_relative_positions():
    """Bloom's positions are distances: padding unequal contexts together would shift them."""
    network = bloom()
    decoder = PlainDecoder(network)
    prefix, first = decoder.prefill(CONTEXTS)
    step = decoder.step(decoder.fork(prefix, copies=1, max_new_tokens=2), torch.tensor([9, 9]))
    with torch.no_grad():
        for row, context in enumerate(CONTEXTS):
            expected = network(torch.tensor([[*context, 9]])).logits[0]
            torch.testing.assert_close(first[row], expected[-2], atol=1e-5, rtol=0)
            torch.testing.assert_close(step[row], expected[-1], atol=1e-5, rtol=0)


def test_an_unknown_family_is_compared_with_a_plain_pass(monkeypatch):
    monkeypatch.setattr(shared_prefix, "VERIFIED", frozenset())
    assert why_not_shared_prefix(gpt2()) is None


def test_an_unknown_family_that_changes_attention_is_found_out(monkeypatch):
    """Deliberate mistake: a network that hands the interface a wrong scale (as one with its own attention would)."""
    monkeypatch.setattr(shared_prefix, "VERIFIED", frozenset())
    network = gpt2()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.5)
    right = SharedPrefixDecoder.step

    def wrong(self, state, tokens):
        for block in self.network.transformer.h:
            block.attn.scaling *= 2
        try:
            return right(self, state, tokens)
        finally:
            for block in self.network.transformer.h:
                block.attn.scaling /= 2

    monkeypatch.setattr(SharedPrefixDecoder, "step", wrong)
    assert why_not_shared_prefix(network) == "its logits differ from those of a plain forward pass"


def test_an_unknown_family_that_breaks_falls_back(monkeypatch):
    monkeypatch.setattr(shared_prefix, "VERIFIED", frozenset())

    def no_extras(self, hidden_states, past_key_values=None, attention_mask=None, **kwargs):
        kwargs.pop("shared_prefix", None)  # a family that does not pass extra arguments on
        return right(self, hidden_states, past_key_values, attention_mask, **kwargs)

    right = modeling_gpt2.GPT2Attention.forward
    monkeypatch.setattr(modeling_gpt2.GPT2Attention, "forward", no_extras)
    assert "failed on it (TypeError)" in why_not_shared_prefix(gpt2())


def test_an_unknown_family_with_a_window_falls_back(monkeypatch):
    monkeypatch.setattr(shared_prefix, "VERIFIED", frozenset())
    config = transformers.MistralConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, sliding_window=4,
    )  # fmt: skip
    assert "slides an attention window" in why_not_shared_prefix(transformers.MistralForCausalLM(config).eval())


def test_a_convolution_has_its_own_decoder():
    network = build_network("conv-tiny", vocabulary_size=50, max_length=32, eos_token_id=0).eval()
    assert isinstance(decoder_for(network), ConvolutionDecoder)


@pytest.mark.parametrize("decoder_class", [PackedDecoder, SharedPrefixDecoder, PlainDecoder])
def test_misuse_is_refused_with_the_cure(decoder_class):
    decoder = decoder_class(gpt2())
    with pytest.raises(ModelError, match="a context is empty"):
        decoder.prefill([[1], []])
    with pytest.raises(ModelError, match="take 13 tokens but the model holds 12"):
        decoder.prefill([list(range(13))])
    prefix, _ = decoder.prefill(CONTEXTS)
    with pytest.raises(ModelError, match="take 15 tokens but the model holds 12"):
        decoder.fork(prefix, copies=1, max_new_tokens=10)
    decoder.network.train()
    with pytest.raises(ModelError, match="training mode"):
        decoder.prefill(CONTEXTS)
