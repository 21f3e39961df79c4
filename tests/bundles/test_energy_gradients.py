"""Gradients by token embeddings: against `inputs_embeds`, against finite differences, calibration included."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from energylm.bundles.energy_model import EnergyGradients, EnergyModel
from energylm.data.corpus import Corpus
from energylm.energies.pooled import PooledEnergy
from energylm.errors import ModelError


@pytest.fixture(scope="module")
def tokenizer(corpus_folder):
    return Corpus.open(corpus_folder).tokenizer


@pytest.fixture(scope="module")
def bidirectional(tokenizer):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32,
        )  # fmt: skip
        encoder = BertModel(config, add_pooling_layer=False)
        for parameter in encoder.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    network = PooledEnergy(encoder.eval().double(), kind="bit", pooling="first")
    network.head.weight.data *= 1000
    return EnergyModel(network.eval(), tokenizer, scale=-3.0, shift=0.7)


@pytest.fixture(params=["causal", "bidirectional"])
def energy(request, energy_folder, bidirectional):
    return EnergyModel.from_pretrained(energy_folder) if request.param == "causal" else bidirectional


TOKENS = torch.tensor([20, 7, 7, 190, 33, 5])


def test_equals_the_gradient_by_inputs_embeds(energy):
    """The other entrance that transformers' networks have, pooled by hand."""
    gradients = EnergyGradients(energy)
    value, gradient = gradients.token_gradients(TOKENS)
    network = energy.network
    embedded = network.get_input_embeddings()(TOKENS)[None].detach().requires_grad_()
    hidden = network.encoder(inputs_embeds=embedded, attention_mask=torch.ones(1, 6)).last_hidden_state
    pooled = hidden[:, 0] if network.pooling == "first" else hidden.mean(1)
    expected = energy.scale * network.project(pooled) + energy.shift
    assert value == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_close(gradient, torch.autograd.grad(expected.sum(), embedded)[0][0], rtol=1e-4, atol=1e-6)
    assert value == pytest.approx(float(energy.energies(TOKENS[None], torch.tensor([6]))[0]), rel=1e-5)
    raw = gradient / energy.scale
    assert (raw - gradient).abs().max() > 1e-3, "teeth: a gradient without the calibration would be seen"


def test_predicts_a_small_move_of_one_embedding(bidirectional):
    """Finite differences: move token 190's row a little, which moves position 3 alone."""
    gradients = EnergyGradients(bidirectional)
    _, gradient = gradients.token_gradients(TOKENS)
    row = bidirectional.network.get_input_embeddings().weight.data[190]
    move = torch.randn(16, generator=torch.Generator().manual_seed(3)).double()
    before = row.clone()
    ends = []
    for step in (1e-5, -1e-5):
        row.copy_(before + step * move)
        ends.append(float(bidirectional.energies(TOKENS[None], torch.tensor([6]))[0]))
    row.copy_(before)
    slope = (ends[0] - ends[1]) / 2e-5
    assert slope == pytest.approx(float(gradient[3] @ move), rel=1e-5)
    assert slope != pytest.approx(float(gradient[0] @ move), rel=1e-2), "teeth: the gradient of another position"


def test_leaves_no_trace(energy):
    gradients = EnergyGradients(energy)
    layer = energy.network.get_input_embeddings()
    first = gradients.token_gradients(TOKENS)
    assert not layer._forward_hooks and all(parameter.grad is None for parameter in energy.network.parameters())
    with torch.no_grad():
        again = gradients.token_gradients(TOKENS)
    assert first[0] == again[0] and torch.equal(first[1], again[1])
    assert gradients.token_table.shape == (energy.vocabulary_size, layer.weight.shape[1])
    assert_close(gradients.token_table, layer.weight.detach())


def test_a_network_that_embeds_twice_is_refused(bidirectional, monkeypatch):
    network = bidirectional.network

    def twice(tokens, lengths):
        return PooledEnergy.forward(network, tokens, lengths) + PooledEnergy.forward(network, tokens, lengths)

    monkeypatch.setattr(network, "forward", twice)
    with pytest.raises(ModelError, match="reads its token embeddings 2 times"):
        EnergyGradients(bidirectional).token_gradients(TOKENS)
