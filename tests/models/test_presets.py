"""Presets: parameters as printed in the papers, counted on the meta device, so that nothing is allocated."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from energylm.config.models import preset_shape
from energylm.errors import ConfigError
from energylm.models.presets import PRESETS, build_network

VOCABULARY, WINDOW = 50_257, 160  # byte-level BPE after Radford et al. 2019; the papers' windows


def millions(preset, **overrides):
    """(embedding, others) parameters in millions."""
    with torch.device("meta"):
        network = build_network(
            preset, vocabulary_size=VOCABULARY, max_length=WINDOW, eos_token_id=0, overrides=overrides
        )
    embedding = network.get_input_embeddings().weight.numel()
    return embedding / 1e6, (sum(parameter.numel() for parameter in network.parameters()) - embedding) / 1e6


TABLE_9 = {"small": (26, 19), "big": (51, 151), "huge": (77, 1360), "conv": (13, 164)}  # bakhtin2019


@pytest.mark.parametrize("preset", TABLE_9)
def test_sizes_of_bakhtin2019_table_9(preset):
    """Embedding and other parameters round to the printed millions."""
    assert tuple(round(count) for count in millions(preset)) == TABLE_9[preset]


@pytest.mark.parametrize(("preset", "printed"), {"big": 203, "balm": 408, "base-24l": 203, "balm-24l": 408}.items())
def test_sizes_of_deng2020_table_1(preset, printed):
    """Totals within 1 % of the printed millions; the 24-layer models are narrower, not bigger."""
    assert sum(millions(preset)) == pytest.approx(printed, rel=0.01)


def test_the_printed_width_of_balm_does_not_give_its_printed_size():
    """Teeth for the tolerance, and the reason for 1520: the printed 1568 gives 433 M, 6 % too many."""
    assert round(sum(millions("balm", width=1568))) in (433, 434)


def test_one_layer_more_is_seen():
    """Teeth: the counts above tell 12 layers from 13."""
    assert tuple(round(count) for count in millions("big", layers=13)) != TABLE_9["big"]


def test_every_key_can_be_overridden():
    for name, shape in PRESETS.items():
        for key, value in shape.model_dump().items():
            changed = {"dropout": 0.25, "heads": 2, "width": 48 * 16}.get(key, 16)  # heads are 2 … 24
            assert changed != value
            assert getattr(preset_shape(name, {key: changed}), key) == changed


@pytest.mark.parametrize(
    ("preset", "overrides", "words"),
    [
        ("tinny", {}, "did you mean 'tiny'"),
        ("convtiny", {}, "did you mean 'conv-tiny'"),
        ("zzz", {}, "known presets: tiny, mini"),
        ("tiny", {"widht": 64}, "did you mean 'width'"),
        ("tiny", {"heads": 3}, "heads must divide width, came 3 heads and width 128"),
        ("conv", {"heads": 3}, "unknown key 'heads'"),
        ("tiny", {"layers": 0}, "layers"),
    ],
)
def test_mistakes_name_the_cure_in_one_line(preset, overrides, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_network(preset, vocabulary_size=10, max_length=4, eos_token_id=0, overrides=overrides)
    assert "\n" not in str(caught.value)


def test_the_fused_activation_is_the_same_function():
    """`gelu_pytorch_tanh` against GPT-2's own `gelu_new`, values and gradients."""
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, activation_function="gelu_new")).double()
    overrides = {"layers": 2, "width": 16, "heads": 2}
    fused = build_network("tiny", vocabulary_size=11, max_length=8, eos_token_id=0, overrides=overrides).double()
    fused.load_state_dict(reference.state_dict())
    tokens = torch.arange(8)[None]
    for network in (reference, fused):
        network(input_ids=tokens).logits.square().sum().backward()
    torch.testing.assert_close(fused(input_ids=tokens).logits, reference(input_ids=tokens).logits)
    torch.testing.assert_close(fused.transformer.wte.weight.grad, reference.transformer.wte.weight.grad)
    assert fused.lm_head.weight is fused.transformer.wte.weight  # tied


def test_weights_come_from_the_global_generator():
    def weights(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = build_network("conv-tiny", vocabulary_size=20, max_length=8, eos_token_id=0)
        return network.blocks[0].convolution.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
