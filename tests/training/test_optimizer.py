"""Parameter groups: who learns at which rate, who is decayed."""

import torch
from torch import nn
from torch.testing import assert_close

from energylm.config.training import OptimizerConfig
from energylm.training.optimizer import build_optimizer, layer_multipliers, set_learning_rate


def test_layer_multipliers_by_hand():
    """Two blocks, decay 0.5: head 1, block 1 (the upper) ½, block 0 ¼, embeddings ⅛. Names of four families."""
    expected = {
        "transformer.wte.weight": 1 / 8,
        "transformer.wpe.weight": 1 / 8,
        "transformer.h.0.attn.c_attn.weight": 1 / 4,
        "transformer.h.1.ln_1.bias": 1 / 2,
        "transformer.ln_f.weight": 1,
        "lm_head.weight": 1,
    }
    assert layer_multipliers(expected, layer_decay=0.5) == expected
    expected = {
        "bert.embeddings.word_embeddings.weight": 1 / 8,
        "bert.encoder.layer.0.attention.self.query.weight": 1 / 4,
        "bert.encoder.layer.1.output.dense.weight": 1 / 2,
        "bert.pooler.dense.weight": 1,
        "classifier.weight": 1,
    }
    assert layer_multipliers(expected, layer_decay=0.5) == expected
    expected = {
        "model.embed_tokens.weight": 1 / 8,
        "model.layers.0.mlp.up_proj.weight": 1 / 4,
        "model.layers.1.mlp.up_proj.weight": 1 / 2,
        "model.norm.weight": 1,
    }
    assert layer_multipliers(expected, layer_decay=0.5) == expected
    expected = {"embedding.weight": 1 / 8, "blocks.0.norm.weight": 1 / 4, "blocks.1.norm.weight": 1 / 2, "norm.bias": 1}
    assert layer_multipliers(expected, layer_decay=0.5) == expected


def test_modules_side_by_side_count_their_own_blocks():
    names = {
        "generator.embedding.weight": 1 / 4,
        "generator.layers.0.weight": 1 / 2,
        "discriminator.embedding.weight": 1 / 16,
        "discriminator.layers.0.weight": 1 / 8,
        "discriminator.layers.2.weight": 1 / 2,
    }
    assert layer_multipliers(names, layer_decay=0.5) == names


def test_ten_or_more_blocks_are_counted_as_numbers():
    names = [f"h.{i}.weight" for i in range(12)]
    assert_close(layer_multipliers(names, layer_decay=0.8)["h.2.weight"], 0.8**10)


def test_the_rates_move_the_weights(toy):
    """With a gradient of ones Adam's first update is the learning rate itself: each layer moves by its own multiple."""
    model = toy.network(dropout=0.0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerConfig(layer_decay=0.5, eps=1e-12))
    set_learning_rate(optimizer, 0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moved = {name: (before[name] - parameter).detach() for name, parameter in model.named_parameters()}
    for name, multiple in layer_multipliers(before, layer_decay=0.5).items():
        assert_close(moved[name], torch.full_like(moved[name], 0.01 * multiple), atol=1e-7, rtol=1e-5)
    assert {round(float(m.mean()), 6) for m in moved.values()} == {0.01, 0.005, 0.0025, 0.00125}


def test_biases_norms_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    model[2].weight.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1))
    decayed = [p for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]]
    spared = [p for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]]
    assert len(decayed) == 1 and decayed[0] is model[0].weight
    assert {id(p) for p in spared} == {id(model[0].bias), id(model[1].weight), id(model[1].bias), id(model[2].bias)}
