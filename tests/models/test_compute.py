"""Counted compute against torch's own counter of operations, and steps at equal compute."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from energylm.config.pretrain import (
    MASKED_PRESETS,
    LanguageModelSettings,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
    fraction_of_shape,
    masked_preset_shape,
    tower_shape,
)
from energylm.energies.electric import TokenEnergy
from energylm.errors import ConfigError
from energylm.models.cloze_presets import (
    build_detector,
    build_encoder,
    build_generator,
    build_masked_network,
    build_two_tower,
)
from energylm.models.compute import (
    equal_steps,
    softmax_flops,
    training_flops_per_step,
    training_flops_per_token,
)
from energylm.models.presets import build_network

VOCABULARY, WINDOW = 300, 20
SIZES = {"vocabulary_size": VOCABULARY, "max_length": WINDOW, "pad_token_id": None}
TOKENS = torch.zeros(2, WINDOW, dtype=torch.int64)


def counted(run):
    """Forward operations a token by torch's counter; attention as plain products, which it counts everywhere."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops() / TOKENS.numel()


def eager(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    return network


PRESETS = ("bit-tiny", "bit-local-tiny")
NETWORK = {"width": 96, "heads": 12}


def config(kind, preset="bit-tiny", **values):
    return kind.checked({"corpus": "none", "window": WINDOW, "preset": preset, "network": NETWORK, **values})


def shape_of(preset):
    return masked_preset_shape(preset, NETWORK)


def nearly(flops):
    """Rotary positions, which nobody counts, are a small product of their own."""
    return pytest.approx(flops, rel=1e-4)


def ours(chosen):
    return {name: f / 3 for name, f in training_flops_per_token(chosen, vocabulary_size=VOCABULARY).items()}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_masked_language_model(preset):
    """The counter's network predicts at every token, training at 15 %: the output layer counts by that share."""
    network = build_masked_network(preset, overrides=NETWORK, **SIZES)
    everywhere = counted(lambda: eager(network)(TOKENS))
    output = softmax_flops(states_width=96, embedding_width=96, vocabulary_size=VOCABULARY)
    assert ours(config(PretrainMLMConfig, preset))["main"] == nearly(everywhere - 0.85 * output)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", [2 / 3, 1.0])
def test_two_towers(preset, size):
    found = counted(lambda: eager(build_two_tower(tower_shape(shape_of(preset), size), **SIZES))(TOKENS))
    assert ours(config(PretrainTwoTowerConfig, preset, size=size))["main"] == pytest.approx(found)


@pytest.mark.parametrize("preset", PRESETS)
def test_electric_and_its_noise(preset):
    energy = TokenEnergy(eager(build_encoder(shape_of(preset), **SIZES)))
    noise = eager(build_two_tower(tower_shape(shape_of(preset), 1 / 4), embedding_width=96, **SIZES))
    found = ours(config(PretrainElectricConfig, preset))
    assert found["main"] == nearly(counted(lambda: energy(TOKENS)))
    assert found["noise"] == pytest.approx(counted(lambda: noise(TOKENS)))
    naive = ours(config(PretrainElectricConfig, preset, algorithm="naive"))
    assert naive["main"] == pytest.approx(found["main"] * (1 + 0.15 * WINDOW))  # k + 1 passes


@pytest.mark.parametrize(("preset", "embedding_width"), list(zip(PRESETS, (96, 32), strict=True)))
def test_electra_and_its_generators(preset, embedding_width):
    """A local generator has a table of its own width, 32."""
    detector = eager(build_detector(shape_of(preset), **SIZES))
    generator = eager(build_generator(fraction_of_shape(shape_of(preset), 1 / 3), embedding_width=96, **SIZES))
    found = ours(config(PretrainElectraConfig, preset))
    assert found["main"] == nearly(counted(lambda: detector(TOKENS)))
    output = softmax_flops(states_width=32, embedding_width=embedding_width, vocabulary_size=VOCABULARY)
    assert found["noise"] == nearly(counted(lambda: generator(TOKENS)) - 0.85 * output)
    towers = ours(config(PretrainElectraConfig, preset, noise="two-tower"))["noise"]
    assert towers == ours(config(PretrainElectricConfig, preset))["noise"]


def test_a_causal_language_model():
    chosen = LanguageModelSettings(window=WINDOW, network=NETWORK)
    sizes = {"vocabulary_size": VOCABULARY, "max_length": WINDOW, "eos_token_id": 0}
    network = eager(build_network("tiny", overrides=NETWORK, **sizes))
    assert ours(chosen)["main"] == pytest.approx(counted(lambda: network(TOKENS)))
    for other in ({"preset": "conv-tiny"}, {"kind": "balm", "base": "none"}):
        with pytest.raises(ConfigError, match="counted for transformers of kind lm"):
            training_flops_per_token(LanguageModelSettings(**other), vocabulary_size=9)


def test_training_costs_three_forward_passes():
    """Counted, not believed: every weight's product comes back twice in the backward pass. Attention, too."""
    network = eager(build_encoder(shape_of("bit-tiny"), **SIZES))
    inputs = torch.randn(2, WINDOW, 96, requires_grad=True)  # as if an earlier layer asked for its gradient
    with FlopCounterMode(display=False) as counter:
        network(inputs_embeds=inputs).last_hidden_state.sum().backward()
    forward = counted(lambda: network(inputs_embeds=inputs))
    assert counter.get_total_flops() / TOKENS.numel() == pytest.approx(3 * forward)


def test_equal_steps():
    reference = config(PretrainMLMConfig, training={"steps": 500, "global_batch": 8})
    compute = 500 * training_flops_per_step(reference, vocabulary_size=VOCABULARY)
    electric = config(PretrainElectricConfig, training={"global_batch": 8})
    steps = equal_steps(electric, compute, vocabulary_size=VOCABULARY)
    spent = steps * training_flops_per_step(electric, vocabulary_size=VOCABULARY)
    assert steps < 500 and spent == pytest.approx(compute, rel=1 / steps)
    assert equal_steps(electric, 1.0, vocabulary_size=VOCABULARY) == 1


def test_fractions_of_the_papers_network_are_exact():
    """clark2020 table 3 and app. A: 768 wide, 12 heads, feed-forward 3072."""
    base = MASKED_PRESETS["bit-base"]
    assert (base.layers, base.width, base.heads) == (12, 768, 12)
    found = {size: fraction_of_shape(base, size) for size in (1 / 4, 1 / 3, 2 / 3)}
    assert [(s.width, s.heads, s.feedforward_width) for s in found.values()] == [
        (192, 3, 768),
        (256, 4, 1024),
        (512, 8, 2048),
    ]
    for preset in ("bit-tiny", "bit-mini"):  # elsewhere to the nearest width that heads allow
        shape = MASKED_PRESETS[preset]
        for size in found:
            part = fraction_of_shape(shape, size)
            assert part.width == pytest.approx(size * shape.width, rel=0.1) and part.layers == shape.layers


def test_the_rule_of_thumb_of_the_paper():
    """Without the output layers two quarter-size towers cost about a third-size generator (app. A: "roughly the same"),
    and two two-thirds towers about one full network; with them a small network's noise is dear."""
    paper = {"corpus": "none", "preset": "bit-base", "window": 512}
    no_output = {"vocabulary_size": 0}
    electric = training_flops_per_token(PretrainElectricConfig.checked(paper), **no_output)
    electra = training_flops_per_token(PretrainElectraConfig.checked(paper), **no_output)
    towers = training_flops_per_token(PretrainTwoTowerConfig.checked(paper), **no_output)
    assert electric["noise"] == pytest.approx(electra["noise"], rel=0.25)
    assert towers["main"] == pytest.approx(electra["main"], rel=0.15)
    tiny = {"corpus": "none", "preset": "bit-tiny"}
    dear = training_flops_per_token(PretrainElectricConfig.checked(tiny), vocabulary_size=8192)
    assert dear["noise"] > dear["main"]
