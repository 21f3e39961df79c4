"""Counted work: by hand, against `compute`, and against the parameters of real networks."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from energylm.config.models import TransformerShape
from energylm.models.compute import (
    ATTENTION_FLOATS,
    LAYER_FLOATS,
    LAYER_OPERATIONS,
    LOGIT_FLOATS,
    PASS_OPERATIONS,
    Network,
    Work,
    causal_flops,
    drawing,
    reading,
    resident_bytes,
    updating,
)
from energylm.models.presets import build_network, count_parameters

SMALL = Network("causal", layers=2, width=8, heads=2, inner_width=32, vocabulary_size=100)


def test_a_forward_pass_by_hand():
    """Three rows of five tokens, all predicted. A token: 2 layers of 2·(4·64 + 2·8·32) + 4·5·8 = 1,536 + 160 products'
    operations, and 2·8·100 for the output; element-wise 2·(40·8 + 4·2·5) floats, and 4·100 for the logits."""
    found = reading(SMALL, rows=3, length=5, predicted=15)
    assert found.flops == 15 * (2 * (1536 + 160) + 1600)
    assert found.bytes == 4 * 15 * (2 * (LAYER_FLOATS * 8 + ATTENTION_FLOATS * 2 * 5) + LOGIT_FLOATS * 100)
    assert found.operations == 2 * LAYER_OPERATIONS + PASS_OPERATIONS


@pytest.mark.parametrize(("layers", "width", "length"), [(2, 64, 48), (12, 1024, 160)])
def test_products_are_those_that_compute_counts(layers, width, length):
    shape = TransformerShape(layers=layers, width=width, heads=4)
    network = Network.of_shape(shape, vocabulary_size=2048)
    counted = reading(network, rows=7, length=length, predicted=7 * length).flops
    assert counted == pytest.approx(7 * length * causal_flops(shape, length=length, vocabulary_size=2048))
    without_output = reading(network, rows=7, length=length).flops  # teeth: an energy has no output layer
    assert without_output < 0.99 * counted


@pytest.mark.parametrize("preset", ["tiny", "small", "big", "conv", "conv-tiny"])
@pytest.mark.parametrize("length", [16, 48])
def test_products_are_those_that_torch_counts_on_meta_tensors(preset, length):
    """Two routes to one number; so plans need no network built, and take sizes of networks that are not here."""
    with torch.device("meta"):
        built = build_network(preset, vocabulary_size=2048, max_length=length, eos_token_id=None).eval()
        with FlopCounterMode(display=False) as counter:
            built(torch.zeros(3, length, dtype=torch.long))
    network = Network.of_preset(preset, {}, vocabulary_size=2048)
    hand = reading(network, rows=3, length=length, predicted=3 * length).flops
    assert hand == pytest.approx(counter.get_total_flops(), rel=1e-12)
    shorter = reading(network, rows=3, length=length - 1, predicted=3 * length).flops  # teeth: a token too few
    assert shorter < hand * (1 - 0.5 / length)


@pytest.mark.parametrize("preset", ["tiny", "small", "big", "conv", "conv-tiny"])
def test_parameters_are_nearly_those_of_the_network(preset):
    with torch.device("meta"):
        built = build_network(preset, vocabulary_size=8192, max_length=160, eos_token_id=None)
    counted = Network.of_preset(preset, {}, vocabulary_size=8192).parameters
    assert counted == pytest.approx(count_parameters(built), rel=0.04)


def test_an_update_costs_three_passes_the_optimiser_and_a_frozen_base():
    forward = reading(SMALL, rows=4, length=5, predicted=20)
    update = updating(SMALL, rows=4, length=5, predicted=20)
    assert update.flops == 3 * forward.flops and update.bytes > 3 * forward.bytes
    residual = Network(**{**vars(SMALL), "read_only": SMALL})
    assert updating(residual, rows=4, length=5, predicted=20).flops == 4 * forward.flops


def test_drawing_reads_a_context_once_and_twice_the_rows_halve_the_operations():
    one = drawing(SMALL, contexts=10, copies=1, given=6, new=4, rows=10)
    many = drawing(SMALL, contexts=10, copies=50, given=6, new=4, rows=500)
    per_token = reading(SMALL, rows=1, length=1, predicted=1).flops
    assert many.flops - one.flops > 49 * 10 * 4 * per_token  # the rest is attention
    assert many.flops < 50 * one.flops  # teeth: reading the context for every copy
    assert many.operations == one.operations
    assert drawing(SMALL, contexts=10, copies=50, given=6, new=4, rows=250).operations == 2 * many.operations


def test_a_balm_has_the_parameters_that_were_asked_for():
    wide = SMALL.widened(3 * SMALL.parameters)
    assert wide.parameters == pytest.approx(3 * SMALL.parameters, rel=0.15)
    assert wide.inner_width / wide.width == pytest.approx(4, rel=0.1)


def test_learning_needs_more_room_than_reading():
    sizes = {"tokens": 100, "length": 5, "predicted": 100}
    reads, learns = (resident_bytes(SMALL, **sizes, learns=learns) for learns in (False, True))
    assert learns - reads > 3 * 4 * SMALL.parameters
    assert Work(1, 2, 3) + Work(1, 1, 1) * 2 == Work(3, 4, 5)
