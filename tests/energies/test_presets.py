"""Table 10: the published sizes come out of the presets; keys can be changed, mistakes are named."""

import pytest
import torch

from energylm.config.models import ENERGY_PRESETS, energy_preset_shape, preset_kind
from energylm.energies.encoder_bodies import build_energy_body
from energylm.energies.pooled import kind_of
from energylm.errors import ConfigError

PAPER_VOCABULARY = 50_257


@pytest.mark.parametrize(
    ("preset", "embedding", "others"), [("linear", 0.05, 0), ("bilstm-small", 26, 23), ("bilstm-big", 39, 90)]
)
def test_parameters_of_table_10(preset, embedding, others):
    """In millions, as printed (Linear's 0.05 is printed as 0.1); 758 and 2014 units of the text would make 337 M."""
    with torch.device("meta"):
        body = build_energy_body(preset, vocabulary_size=PAPER_VOCABULARY)
    size = body.get_input_embeddings().weight.numel()
    total = sum(parameter.numel() for parameter in body.parameters())
    digits = 2 if preset == "linear" else 0
    assert round(size / 1e6, digits) == embedding and round((total - size) / 1e6) == others


def test_the_printed_units_do_not_make_the_printed_size():
    with torch.device("meta"):
        body = build_energy_body(
            "bilstm-big", vocabulary_size=PAPER_VOCABULARY, overrides={"embedding_width": 758, "width": 2014}
        )
    assert sum(parameter.numel() for parameter in body.parameters()) > 300e6


@pytest.mark.parametrize("preset", ENERGY_PRESETS)
def test_kinds_agree_with_networks(preset):
    small = {} if preset == "linear" else {"layers": 1, "embedding_width": 4, "width": 3}
    body = build_energy_body(preset, vocabulary_size=9, overrides=small)
    assert kind_of(body) == preset_kind(preset)
    if small:
        assert (len(body.layers), body.config.embedding_size, body.config.hidden_size) == (1, 4, 6)


def test_mistakes_name_the_nearest_neighbour():
    with pytest.raises(ConfigError, match="did you mean 'bilstm-small'"):
        energy_preset_shape("bilstm-smal")
    with pytest.raises(ConfigError, match="unknown key 'widht'; did you mean 'width'"):
        energy_preset_shape("bilstm-small", {"widht": 3})
    with pytest.raises(ConfigError, match="unknown key 'width'"):
        energy_preset_shape("linear", {"width": 3})
