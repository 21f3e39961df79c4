"""The linear energy: a sum of token weights, blind to order, without padding, convex, as a folder."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModel

from energylm.energies.encoder_bodies import BagOfTokens, BagOfTokensConfig, register
from energylm.energies.pooled import PooledEnergy, kind_of
from energylm.errors import ConfigError

VOCABULARY = 11
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [7, 8, 8, 8, 8]])
LENGTHS = torch.tensor([5, 3, 2])


@pytest.fixture
def energy():
    body = BagOfTokens(BagOfTokensConfig(vocab_size=VOCABULARY))
    with torch.no_grad():
        body.token_weight.weight.copy_(torch.arange(VOCABULARY).double()[:, None] ** 2)
    return PooledEnergy(body, kind=kind_of(body)).eval()


def test_by_hand(energy):
    """Weights are squares: 9 + 1 + 16 + 1 + 25, 81 + 4 + 36, 49 + 64; the mean would give other numbers."""
    assert (energy.kind, energy.pooling, energy.vocabulary_size, energy.max_tokens) == ("linear", "sum", 11, None)
    assert energy(TOKENS, LENGTHS).tolist() == [52.0, 121.0, 113.0]
    junk = torch.where(torch.arange(5) < LENGTHS[:, None], TOKENS, 10)
    assert torch.equal(energy(junk, LENGTHS), energy(TOKENS, LENGTHS))
    assert not torch.equal(energy(junk, torch.full((3,), 5)), energy(TOKENS, LENGTHS))  # teeth: padding summed
    assert torch.equal(energy(TOKENS[:1].flip(1), LENGTHS[:1]), energy(TOKENS[:1], LENGTHS[:1]))


def test_one_parameter_a_token_learns_and_nothing_else(energy):
    """∂E/∂u[v] is the count of v; the projection is the identity and stays so."""
    energy(TOKENS[:1], LENGTHS[:1]).sum().backward()
    learning = {name for name, parameter in energy.named_parameters() if parameter.requires_grad}
    assert learning == {"encoder.token_weight.weight"}
    counts = torch.bincount(TOKENS[0], minlength=VOCABULARY)
    assert_close(energy.encoder.token_weight.weight.grad[:, 0], counts.float())
    assert energy.head.weight.tolist() == [[1.0]] and energy.head.bias.tolist() == [0.0]


def test_it_starts_at_zero():
    body = BagOfTokens(BagOfTokensConfig(vocab_size=VOCABULARY))
    assert torch.equal(PooledEnergy(body, kind="linear")(TOKENS, LENGTHS), torch.zeros(3))


def test_other_poolings_are_refused(energy):
    for pooling in ("mean", "first"):
        with pytest.raises(ConfigError, match=f"pooling '{pooling}' came for a bag-of-tokens encoder; use 'sum'"):
            PooledEnergy(energy.encoder, kind="linear", pooling=pooling)


def test_a_folder_is_read_by_the_auto_class(energy, tmp_path):
    energy.encoder.save_pretrained(tmp_path)
    register()
    again = AutoModel.from_pretrained(tmp_path)
    assert isinstance(again, BagOfTokens)
    assert torch.equal(again.token_weight.weight, energy.encoder.token_weight.weight)


def test_embeddings_may_be_given_in_place_of_ids(energy):
    mask = (torch.arange(5) < LENGTHS[:, None]).long()
    given = energy.encoder.get_input_embeddings()(TOKENS)
    by_ids = energy.encoder(input_ids=TOKENS, attention_mask=mask).last_hidden_state
    assert torch.equal(energy.encoder(inputs_embeds=given, attention_mask=mask).last_hidden_state, by_ids)
