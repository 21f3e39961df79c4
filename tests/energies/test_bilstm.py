"""The BiLSTM against torch's own packed bidirectional LSTM; padding; both directions; folders; first weights."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close
from transformers import AutoModel

from energylm.energies.encoder_bodies import BiLSTM, BiLSTMConfig, register
from energylm.energies.pooled import PooledEnergy, kind_of
from energylm.errors import ConfigError

VOCABULARY, EMBEDDING, WIDTH, LAYERS = 13, 5, 4, 3
SIZES = {"vocab_size": VOCABULARY, "embedding_size": EMBEDDING, "hidden_size": 2 * WIDTH, "num_hidden_layers": LAYERS}
TOKENS = torch.randint(0, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([9, 4, 1, 6])
MASK = (torch.arange(9) < LENGTHS[:, None]).long()


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BiLSTM(BiLSTMConfig(**SIZES)).double().eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    return network


def torchs_own(network):
    """`nn.LSTM(bidirectional=True)` with the same weights."""
    lstm = nn.LSTM(EMBEDDING, WIDTH, num_layers=LAYERS, bidirectional=True, batch_first=True).double()
    for number, layer in enumerate(network.layers):
        for direction, suffix in ((layer.forwards, ""), (layer.backwards, "_reverse")):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(lstm, f"{name}_l{number}{suffix}").data.copy_(getattr(direction, f"{name}_l0"))
    return lstm


def test_states_and_gradients_equal_those_of_packed_sequences(network):
    lstm, inputs = torchs_own(network), network.embedding(TOKENS).detach()
    mine, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    states = network(inputs_embeds=mine, attention_mask=MASK).last_hidden_state
    packed = pack_padded_sequence(theirs, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    real = MASK[..., None] > 0
    assert_close(torch.where(real, states, 0.0), expected, atol=1e-12, rtol=0)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.where(real, states * weight, 0.0).sum().backward()
    (expected * weight).sum().backward()
    assert_close(mine.grad, theirs.grad, atol=1e-12, rtol=0)
    # Teeth: a backward LSTM that starts in the padding is another network.
    assert not torch.allclose(torch.where(real, lstm(inputs)[0], 0.0), expected)


def test_without_a_mask_everything_is_text(network):
    whole = network(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).last_hidden_state
    assert torch.equal(network(input_ids=TOKENS).last_hidden_state, whole)


def test_padding_never_changes_an_energy(network):
    energy = PooledEnergy(network, kind=kind_of(network)).double().eval()
    energy.head.weight.data *= 100
    assert (energy.kind, energy.pooling, energy.max_tokens) == ("bilstm", "mean", None)
    with torch.no_grad():
        alone = torch.cat([energy(row[None, :n], n[None]) for row, n in zip(TOKENS, LENGTHS, strict=True)])
        junk = torch.where(MASK > 0, TOKENS, VOCABULARY - 1)
        longer = torch.nn.functional.pad(junk, (0, 4), value=2)
        for tokens in (TOKENS, junk, longer):
            assert_close(energy(tokens, LENGTHS), alone, atol=1e-12, rtol=0)
        assert alone.std() > 0.01
        assert not torch.allclose(energy(junk, torch.full((4,), 9)), alone)  # teeth


@pytest.mark.parametrize("edited", [0, 8])
def test_every_position_sees_both_ends(network, edited):
    changed = TOKENS[:1].clone()
    changed[0, edited] = (changed[0, edited] + 1) % VOCABULARY
    difference = network(input_ids=changed).last_hidden_state - network(input_ids=TOKENS[:1]).last_hidden_state
    assert (difference[0].abs().amax(-1) > 1e-9).all()


def test_forget_gates_start_open_and_loading_leaves_them_alone(network, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        fresh = BiLSTM(BiLSTMConfig(**SIZES))
    for layer in fresh.layers:
        for lstm in (layer.forwards, layer.backwards):
            bias = lstm.bias_ih_l0 + lstm.bias_hh_l0
            assert bias.view(4, WIDTH)[1].tolist() == [1.0] * WIDTH and bias.count_nonzero() == WIDTH
    network.save_pretrained(tmp_path)
    register()
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(again, BiLSTM)
    states = again(input_ids=TOKENS, attention_mask=MASK).last_hidden_state
    assert torch.equal(states, network(input_ids=TOKENS, attention_mask=MASK).last_hidden_state)


def test_dropout_is_for_training_alone(network):
    once = network(input_ids=TOKENS).last_hidden_state
    assert torch.equal(network(input_ids=TOKENS).last_hidden_state, once)
    assert not torch.equal(network.train()(input_ids=TOKENS).last_hidden_state, once)


def test_the_first_position_is_refused(network):
    with pytest.raises(ConfigError, match="bidirectional LSTM encoder; use 'mean'"):
        PooledEnergy(network, kind="bilstm", pooling="first")
