"""Counted compute against torch's own counter of operations, and steps at equal compute."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraModel

from energylm.config.models import TransformerShape
from energylm.config.pretrain import (
    MASKED_PRESETS,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
    fraction_of_shape,
)
from energylm.energies.electric import TokenEnergy
from energylm.models.cloze_presets import build_two_tower, electra_config
from energylm.models.compute import (
    equal_steps,
    softmax_flops,
    training_flops_per_step,
    training_flops_per_token,
)
from energylm.models.masked_presets import build_masked_network

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


def config(kind, **values):
    return kind.checked({"corpus": "none", "window": WINDOW, "network": {"width": 96, "heads": 12}, **values})


def ours(chosen):
    return {name: f / 3 for name, f in training_flops_per_token(chosen, vocabulary_size=VOCABULARY).items()}


SHAPE = TransformerShape(layers=2, width=96, heads=12, dropout=0.0)


def test_a_masked_language_model():
    """The counter's network predicts at every token, training at 15 %: the output layer counts by that share."""
    network = build_masked_network("bit-tiny", overrides={"width": 96, "heads": 12}, **SIZES)
    everywhere = counted(lambda: eager(network)(TOKENS))
    output = softmax_flops(states_width=96, embedding_width=96, vocabulary_size=VOCABULARY)
    assert ours(config(PretrainMLMConfig))["main"] == pytest.approx(everywhere - 0.85 * output)


def test_two_towers():
    for size in (2 / 3, 1.0):
        shape = fraction_of_shape(SHAPE, size)
        found = counted(lambda shape=shape: eager(build_two_tower(shape, **SIZES))(TOKENS))
        assert ours(config(PretrainTwoTowerConfig, size=size))["main"] == pytest.approx(found)


def test_electric_and_its_noise():
    energy = TokenEnergy(eager(ElectraModel(electra_config(SHAPE, **SIZES))))
    noise = eager(build_two_tower(fraction_of_shape(SHAPE, 1 / 4), embedding_width=96, **SIZES))
    found = ours(config(PretrainElectricConfig))
    assert found["main"] == pytest.approx(counted(lambda: energy(TOKENS)))
    assert found["noise"] == pytest.approx(counted(lambda: noise(TOKENS)))
    naive = ours(config(PretrainElectricConfig, algorithm="naive"))
    assert naive["main"] == pytest.approx(found["main"] * (1 + 0.15 * WINDOW))  # k + 1 passes


def test_electra_and_its_generators():
    detector = eager(ElectraForPreTraining(electra_config(SHAPE, **SIZES)))
    generator = eager(ElectraForMaskedLM(electra_config(fraction_of_shape(SHAPE, 1 / 3), embedding_width=96, **SIZES)))
    found = ours(config(PretrainElectraConfig))
    assert found["main"] == pytest.approx(counted(lambda: detector(TOKENS)))
    output = softmax_flops(states_width=32, embedding_width=96, vocabulary_size=VOCABULARY)
    assert found["noise"] == pytest.approx(counted(lambda: generator(TOKENS)) - 0.85 * output)
    towers = ours(config(PretrainElectraConfig, noise="two-tower"))["noise"]
    assert towers == ours(config(PretrainElectricConfig))["noise"]


def test_training_costs_three_forward_passes():
    """Counted, not believed: every weight's product comes back twice in the backward pass. Attention, too."""
    network = eager(ElectraModel(electra_config(SHAPE, **SIZES)))
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
