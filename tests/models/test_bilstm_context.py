"""The BiLSTM-context model: its LSTM against torch's, what a context may see, and the contracts it keeps."""

import pytest
import torch
from transformers import AutoModel

from energylm.contracts import MaskedModel
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ModelError
from energylm.models import bilstm_context
from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig, tree_states
from energylm.testing import enumerate_sequences


def test_the_reader_is_an_lstm(context_network) -> None:
    """torch's own, with one-hot inputs and the same start: its gates stand in the order input, forget, cell, output."""
    network = context_network()
    reader, width = network.left, 5
    order = torch.cat([torch.arange(2 * width), torch.arange(3 * width, 4 * width), torch.arange(2 * width, 3 * width)])
    lstm = torch.nn.LSTM(3, width, batch_first=True, bias=False).double().requires_grad_(False)
    lstm.weight_ih_l0.copy_(reader.gates.weight.T[order])
    lstm.weight_hh_l0.copy_(reader.recurrence.weight[order])
    tokens_BT = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]])
    start = reader.start[:, None, None].expand(-1, 1, 2, -1).contiguous()
    states_BTD, _ = lstm(torch.nn.functional.one_hot(tokens_BT, 3).double(), (start[0], start[1]))
    state = reader.nothing(2)
    for position in range(4):
        state = reader.read(state, tokens_BT[:, position])
        torch.testing.assert_close(state[0].T, states_BTD[:, position])


def test_trees_of_states_are_in_lexicographic_order(context_network) -> None:
    network = context_network()
    sequences_ST = enumerate_sequences(3, 3)
    for reader, backwards in ((network.left, False), (network.right, True)):
        state = reader.nothing(27)
        for position in reversed(range(3)) if backwards else range(3):
            state = reader.read(state, sequences_ST[:, position])
        levels = tree_states(reader, [None] * 3, backwards=backwards)
        torch.testing.assert_close(levels[3][0], state[0])
        assert [level[0].shape[1] for level in levels] == [1, 3, 9, 27]
        assert not torch.allclose(tree_states(reader, [None] * 3, backwards=not backwards)[3][0], state[0])
    some = tree_states(network.left, [None, torch.tensor([2, 0])], backwards=False)[2][0]
    torch.testing.assert_close(
        some, tree_states(network.left, [None] * 2, backwards=False)[2][0][:, [2, 0, 5, 3, 8, 6]]
    )


def test_a_token_is_hidden_from_its_own_context_and_from_no_other(context_network) -> None:
    network = context_network()
    tokens_14 = torch.tensor([[0, 1, 2, 0]])
    for position in range(4):
        changed_14 = tokens_14.clone()
        changed_14[0, position] = (tokens_14[0, position] + 1) % 3
        same_T = (network.cloze_logits(changed_14) == network.cloze_logits(tokens_14)).all(-1)[0]
        assert same_T.tolist() == [place == position for place in range(4)]


def test_the_joining_layer_sees_both_sides_together(context_network) -> None:
    """A linear head would make logits a sum over both sides, whose mixed second difference is zero."""
    network = context_network(head=32)
    ends = enumerate_sequences(3, 2)
    tokens_93 = torch.stack([ends[:, 0], torch.zeros(9, dtype=torch.int64), ends[:, 1]], dim=1)
    logits_33 = network.cloze_logits(tokens_93)[:, 1, 0].view(3, 3)
    mixed_33 = logits_33 - logits_33.mean(0) - logits_33.mean(1, keepdim=True) + logits_33.mean()
    assert mixed_33.abs().max() > 0.01


def test_it_is_a_masked_language_model(context_network) -> None:
    network = context_network()
    assert isinstance(network, MaskedModel)
    tokens_RT, lengths_R = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 0, 0]]), torch.tensor([3, 2, 1])
    terms_RT = MaskedLMEnergy(network, kind="raw").terms(tokens_RT, lengths_R)
    for row, length in enumerate(lengths_R.tolist()):
        logits_TV = network.cloze_logits(tokens_RT[row : row + 1, :length])[0]
        expected_T = -logits_TV.gather(1, tokens_RT[row, :length, None])[:, 0]
        torch.testing.assert_close(terms_RT[row, :length], expected_T)
    hidden_RT = torch.tensor([[False, True, False], [True, False, False], [True, False, False]])
    erased_RT = tokens_RT.masked_fill(hidden_RT, network.mask_token_id)
    assert torch.equal(
        network.masked_logits(erased_RT, lengths_R, hidden_RT), network.masked_logits(tokens_RT, lengths_R, hidden_RT)
    )
    with pytest.raises(ModelError, match="hide exactly one token"):
        network.masked_logits(tokens_RT, lengths_R, torch.tensor([[True, True, False]] * 3))


def test_a_folder_gives_it_back(context_network, tmp_path) -> None:
    bilstm_context.register()
    network = context_network().float()
    network.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert isinstance(again, BiLSTMContext)
    tokens_BT = enumerate_sequences(3, 3)
    assert torch.equal(again.cloze_logits(tokens_BT), network.cloze_logits(tokens_BT))


def test_forget_gates_start_open() -> None:
    torch.manual_seed(0)
    network = BiLSTMContext(BiLSTMContextConfig(vocab_size=40, hidden_size=16, head_size=8))
    means = network.right.gates.weight.view(40, 4, 16).mean((0, 2))
    assert means[1] > 0.9 and means[[0, 2, 3]].abs().max() < 0.1
