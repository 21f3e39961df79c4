"""The width that gives a wanted number of parameters: nearest among all widths, by trying them all."""

import pytest
import torch

from energylm.errors import ConfigError
from energylm.models.presets import build_network, count_parameters, width_for

SIZES = {"vocabulary_size": 50, "max_length": 12}


@pytest.mark.parametrize(("preset", "step"), [("tiny", 4), ("conv-tiny", 1)])
@pytest.mark.parametrize("parameters", [8_000, 20_000, 20_500, 61_234])
def test_no_other_width_is_nearer(preset, step, parameters):
    chosen = width_for(parameters, preset, **SIZES, overrides={"layers": 2})

    def distance(width):
        overrides = {"layers": 2, "width": width}
        with torch.device("meta"):
            network = build_network(preset, **SIZES, eos_token_id=None, overrides=overrides)
        return abs(count_parameters(network) - parameters)

    assert chosen % step == 0
    assert distance(chosen) == min(distance(width) for width in range(step, 120, step))


def test_tied_tensors_count_once():
    """GPT-2 of width 4, 1 layer: 50·4 + 12·4 embeddings, 12·4² + 13·4 in the block, 2·4 in the last norm."""
    overrides = {"layers": 1, "width": 4}
    network = build_network("tiny", **SIZES, eos_token_id=0, overrides=overrides)
    assert count_parameters(network) == 50 * 4 + 12 * 4 + 12 * 16 + 13 * 4 + 8


def test_too_few_parameters():
    with pytest.raises(ConfigError, match="take fewer layers"):
        width_for(10, "tiny", **SIZES)
