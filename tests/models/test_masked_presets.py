"""Bidirectional presets: parameters as printed in deng2020 table 1, counted on the meta device."""

import pytest
import torch

from energylm.config.pretrain import MASKED_PRESETS, MaskingConfig, masked_preset_shape
from energylm.errors import ConfigError
from energylm.models.cloze_presets import build_masked_network, token_logits

ROBERTA_VOCABULARY, ROBERTA_POSITIONS = 50_265, 512


def parameters(preset, **overrides):
    with torch.device("meta"):
        network = build_masked_network(
            preset,
            vocabulary_size=ROBERTA_VOCABULARY,
            max_length=ROBERTA_POSITIONS,
            pad_token_id=1,
            overrides=overrides,
        )
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


@pytest.mark.parametrize(("preset", "printed"), {"bit-base": 125, "bit-large": 355}.items())
def test_sizes_of_deng2020_table_1(preset, printed):
    assert parameters(preset) == pytest.approx(printed, rel=0.01)
    assert parameters(preset, layers=MASKED_PRESETS[preset].layers + 1) != pytest.approx(printed, rel=0.01)  # teeth


def test_the_network_is_robertas():
    """Parameter by parameter the shapes of RobertaForMaskedLM but for the two positions that RoBERTa leaves unused."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    with torch.device("meta"):
        ours = build_masked_network("bit-base", vocabulary_size=100, max_length=32, pad_token_id=1)
        theirs = RobertaForMaskedLM(RobertaConfig(vocab_size=100, max_position_embeddings=32, type_vocab_size=1))
    assert sorted(p.shape for p in ours.parameters()) == sorted(p.shape for p in theirs.parameters())


def test_a_layer_passes_on_as_much_in_a_narrow_network_as_in_berts():
    """The spread of W·x for x of unit variance is √width · spread: 0.02 · √768 at every width up to 768."""
    for width in (64, 256, 768):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = build_masked_network(
                "bit-tiny", vocabulary_size=8, max_length=4, pad_token_id=None, overrides={"layers": 1, "width": width}
            )
        value = network.base_model.encoder.layer[0].attention.self.value.weight
        assert float(value.detach().std()) * width**0.5 == pytest.approx(0.02 * 768**0.5, rel=0.05)


@pytest.mark.parametrize("preset", ["bit-tiny", "bit-local-tiny"])
def test_any_tokenizer_serves(preset):
    network = build_masked_network(
        preset, vocabulary_size=20, max_length=8, pad_token_id=None, overrides={"layers": 1, "width": 16}
    ).eval()
    tokens_BT = torch.arange(8)[None]
    logits_BTV = network(input_ids=tokens_BT).logits
    assert logits_BTV.shape == (1, 8, 20)
    hidden_BTD = network.base_model(input_ids=tokens_BT).last_hidden_state
    torch.testing.assert_close(token_logits(network, hidden_BTD[0]), logits_BTV[0])
    assert getattr(network.base_model, "pooler", None) is None  # an unused layer would stop distributed training


@pytest.mark.parametrize("spread", [0.02, 0.05])
def test_the_first_weights_of_a_local_shape_are_as_wide_as_asked(spread):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_masked_network(
            "bit-local-tiny", vocabulary_size=8, max_length=4, pad_token_id=None, overrides={"first_spread": spread}
        )
    value = network.base_model.layers[0].attn.Wqkv.weight.detach()
    assert float(value.std()) == pytest.approx(spread, rel=0.15)  # ModernBERT cuts the tails off


def test_a_local_layer_sees_its_neighbours_only():
    """Of two layers the first sees all positions, the second four on either side. With the first one's attention cut,
    a change at position 0 reaches position 4 and not position 5; with it, everything."""
    network = build_masked_network(
        "bit-local-tiny", vocabulary_size=50, max_length=20, pad_token_id=None, overrides={"width": 16}
    ).eval()
    one, other = torch.arange(20)[None], torch.arange(20)[None].clone()
    other[0, 0] = 40

    def reached():
        difference_TD = (network.base_model(one)[0] - network.base_model(other)[0])[0].abs()
        return (difference_TD.amax(-1) > 1e-7).nonzero().flatten().tolist()

    with torch.no_grad():
        assert reached() == list(range(20))
        network.base_model.layers[0].attn.Wo.weight.zero_()
        assert reached() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("preset", "overrides", "words"),
    [
        ("bit-tinny", {}, "did you mean 'bit-tiny'"),
        ("huge", {}, "known presets: bit-local-tiny, bit-local-mini, bit-tiny, bit-mini, bit-base, bit-large"),
        ("bit-tiny", {"widht": 64}, "did you mean 'width'"),
    ],
)
def test_mistakes_name_the_cure(preset, overrides, words):
    with pytest.raises(ConfigError, match=words):
        masked_preset_shape(preset, overrides)


def test_shares_of_masked_tokens_must_fit():
    assert MaskingConfig(mask_share=0.9, random_share=0.1).rate == 0.15
    with pytest.raises(ConfigError, match=r"must not exceed 1 together, came 0\.8 and 0\.3"):
        MaskingConfig.checked({"random_share": 0.3})
