"""The first layers alone are the encoder's own hidden states, and stay so in a folder; who cannot be cut is named."""

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from energylm.energies.encoder_bodies import keep_first_layers
from energylm.errors import ModelError

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])
SMALL = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}


def make(config_class, model_class, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model_class(config_class(vocab_size=20, **options)).eval()


def test_bert_up_to_its_second_layer(tmp_path):
    encoder = make(BertConfig, BertModel, **SMALL)
    states = encoder(TOKENS, output_hidden_states=True).hidden_states
    assert keep_first_layers(encoder, share=0.5) == 2
    torch.testing.assert_close(encoder(TOKENS).last_hidden_state, states[2])
    with pytest.raises(AssertionError):  # the mistake: one layer more or less
        torch.testing.assert_close(encoder(TOKENS).last_hidden_state, states[3])
    encoder.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert again.config.num_hidden_layers == 2
    torch.testing.assert_close(again(TOKENS).last_hidden_state, states[2])


@pytest.mark.parametrize(
    "encoder",
    [
        make(GPT2Config, GPT2Model, n_embd=16, n_layer=4, n_head=2),
        make(LlamaConfig, LlamaModel, num_key_value_heads=2, **SMALL),
    ],
    ids=["gpt2", "llama"],
)
def test_causal_encoders_can_be_cut_too(encoder):
    assert keep_first_layers(encoder, share=0.6) == 3
    assert encoder(TOKENS).last_hidden_state.isfinite().all() and encoder.config.num_hidden_layers == 3


def test_all_layers_stay_as_they_are_and_one_always_stays():
    encoder = make(BertConfig, BertModel, **SMALL)
    before = encoder(TOKENS).last_hidden_state
    assert keep_first_layers(encoder, share=1.0) == 4
    torch.testing.assert_close(encoder(TOKENS).last_hidden_state, before)
    assert keep_first_layers(encoder, share=0.01) == 1


def test_an_encoder_of_two_stacks_is_refused():
    encoder = make(BertConfig, BertModel, **SMALL)
    encoder.other = torch.nn.ModuleList([torch.nn.Identity() for _ in range(4)])
    with pytest.raises(ModelError, match="set depth to 1"):
        keep_first_layers(encoder, share=0.5)
