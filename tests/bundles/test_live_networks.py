"""Networks that a person holds in memory, PEFT models included, as language models and energies; devices by name.

`peft` is not needed: what is asked of a PEFT model is what its class has had since its first version, `peft_config` and
`get_base_model()`, and that a layer with an adapter keeps the plain one as `base_layer`.
"""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from energylm import EnergyModel, LanguageModel, Reranker, ResidualModel, Scorer
from energylm.bundles.devices import move, usable_device, usable_dtype
from energylm.bundles.scorer import CausalScorer
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.models.causal import CausalLanguageModel

TEXT = "the clerk counts the boats"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT] * 20, vocabulary_size=280)


@pytest.fixture
def network(tokenizer):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
        return LlamaForCausalLM(config).eval()


class AdaptedLinear(nn.Module):
    """y = W x + B A x, as LoRA's layers are."""

    def __init__(self, base_layer, *, rank=2):
        super().__init__()
        self.base_layer = base_layer
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.A = nn.Linear(base_layer.in_features, rank, bias=False)
            self.B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.B(self.A(x))


class Adapter:
    def __init__(self, *, is_prompt_learning):
        self.is_prompt_learning = is_prompt_learning


class StandInPeftModel(nn.Module):
    """Not a network of transformers: a module around one."""

    def __init__(self, network, *, is_prompt_learning=False):
        super().__init__()
        self.base_model, self.peft_config = network, {"default": Adapter(is_prompt_learning=is_prompt_learning)}
        if not is_prompt_learning:
            for layer in network.model.layers:
                layer.mlp.down_proj = AdaptedLinear(layer.mlp.down_proj).eval()

    def get_base_model(self):
        return self.base_model


def test_a_network_in_memory_is_a_language_model(network, tokenizer):
    lm = LanguageModel(network, tokenizer)
    assert lm.model.network is network and lm.eos_token_id == tokenizer.eos_token_id
    wrapped = CausalLanguageModel(network, start_token_id=0, eos_token_id=0)
    assert lm.score(TEXT) == LanguageModel(wrapped, tokenizer).score(TEXT)
    assert lm.sample("the", n=3, max_new_tokens=4, seed=1).texts


def test_adapters_count_and_are_not_saved_in_silence(network, tokenizer, tmp_path):
    """Teeth: the plain network gives another number."""
    plain = LanguageModel(network, tokenizer).score(TEXT)[0].log_prob
    adapted = LanguageModel(StandInPeftModel(network), tokenizer)
    with torch.no_grad():
        ids = torch.tensor([[0, *adapted.encode(TEXT)]])
        log_prob = network(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).sum()
    assert adapted.score(TEXT)[0].log_prob == pytest.approx(float(log_prob), abs=1e-4)
    assert abs(float(log_prob) - plain) > 1e-3
    with pytest.raises(ModelError, match=r"merge them first: model\.merge_and_unload"):
        adapted.save_pretrained(tmp_path / "adapted")
    with pytest.raises(ModelError, match="merge them first"):
        EnergyModel(network, tokenizer).save_pretrained(tmp_path / "energy")


def test_learned_prompts_and_what_is_no_network_are_refused(network, tokenizer):
    with pytest.raises(ModelError, match="'default' is a learned prompt"):
        LanguageModel(StandInPeftModel(network, is_prompt_learning=True), tokenizer)
    with pytest.raises(ModelError, match="a str came as a network; give a PreTrainedModel"):
        LanguageModel("smollm2-135m", tokenizer)
    with pytest.raises(ModelError, match="LlamaModel came, which has no output layer"):
        LanguageModel(network.model, tokenizer)


def test_a_network_in_memory_is_an_energy_to_be_trained(network, tokenizer, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes), add_pooling_layer=False).eval()
    for model, body, kind in ((network, network.model, "unit"), (bert, bert, "bit")):
        energy = EnergyModel(model, tokenizer, name="live")
        assert energy.network.encoder is body and energy.network.kind == kind
        energy.save_pretrained(tmp_path / kind)
        again = EnergyModel.from_pretrained(tmp_path / kind)
        assert torch.equal(again.text_energies([TEXT]), energy.text_energies([TEXT]))
    with pytest.raises(ModelError, match="training mode"):
        EnergyModel(bert.train(), tokenizer).text_energies([TEXT])


def test_models_move(network, tokenizer):
    lm = LanguageModel(network, tokenizer).to(dtype="float64")
    assert network.dtype == torch.float64 and lm.to("cpu").model.network.dtype == torch.float64
    assert Scorer(CausalScorer(lm)).to(dtype=torch.float32).reader.lm.model.network.dtype == torch.float32
    energy = EnergyModel(network, tokenizer).to("cpu", "float64")
    assert energy.network.head.weight.dtype == torch.float64
    Reranker(Scorer(CausalScorer(lm))).to(dtype="float32")
    assert network.dtype == torch.float32
    ResidualModel(lm, energy).to("cpu", "float64")
    assert network.dtype == energy.network.head.weight.dtype == torch.float64
    assert LanguageModel(network, tokenizer).to("cpu").score(TEXT)
    with pytest.raises(ModelError, match="came for a CPU"):
        lm.to("cpu", "float16")


def test_devices_are_found_in_one_place(monkeypatch, network):
    """Of any accelerator that torch names; teeth: one that it does not name is refused."""
    assert usable_device().type == usable_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert usable_device() == torch.device("xpu") and usable_device("xpu:1") == torch.device("xpu:1")
    assert usable_dtype(None, torch.device("xpu")) is None
    assert usable_dtype("bfloat16", torch.device("xpu")) == torch.bfloat16
    for name, said in (
        ("xpu:2", "has 2 of type xpu"),
        ("cuda", "has 0 of type cuda"),
        ("gpu", "none that torch knows"),
    ):
        with pytest.raises(ConfigError, match=said):
            usable_device(name)
    move(network, None, None)
    assert network.dtype == torch.float32
