"""Tables behind the contracts: scores by hand, decoder equal to scores, normalisation over all sequences."""

import math

import pytest
import torch
from torch.testing import assert_close

from energylm.contracts import CausalModel, Decoder, SequenceEnergy
from energylm.testing import TabularEnergy, TabularLanguageModel, enumerate_sequences, sequence_lengths
from energylm.testing.enumeration import history_count


def coin(history):
    """A coin that prefers to repeat itself."""
    return [0.5, 0.5] if not history else [0.8, 0.2] if history[-1] == 0 else [0.3, 0.7]


def test_scores_by_hand():
    """P(0, 0, 1) = 0.5 · 0.8 · 0.2; log-probabilities of a sequence cut after two tokens are followed by 0."""
    model = TabularLanguageModel.from_function(coin, vocabulary_size=2, length=3)
    tokens = torch.tensor([[0, 0, 1], [1, 1, 99]])
    expected = torch.tensor([[0.5, 0.8, 0.2], [0.5, 0.7, 1.0]], dtype=torch.float64).log()
    assert_close(model.token_log_probs(tokens, torch.tensor([3, 2])), expected)
    assert_close(model.token_log_probs(tokens, torch.tensor([3, 2]), first=2), expected[:, 2:])
    assert_close(model.next_log_probs([1]), torch.tensor([0.3, 0.7], dtype=torch.float64).log())


def test_tables_satisfy_the_contracts():
    model = TabularLanguageModel.random(3, 2, seed=0)
    assert isinstance(model, CausalModel) and isinstance(model.decoder(), Decoder)
    assert isinstance(TabularEnergy.random(3, 2, seed=0), SequenceEnergy)


@pytest.mark.parametrize("eos", [None, 0, 2])
def test_probabilities_of_all_sequences_sum_to_one(eos):
    model = TabularLanguageModel.random(3, 4, seed=1, eos_token_id=eos)
    tokens = enumerate_sequences(3, 4, eos_token_id=eos)
    log_probs = model.token_log_probs(tokens, sequence_lengths(tokens, eos_token_id=eos))
    assert math.isclose(log_probs.sum(1).exp().sum(), 1.0, abs_tol=1e-12)
    if eos is not None:  # the mistake: counting sequences as if nothing ended
        everything = enumerate_sequences(3, 4)
        whole = torch.full((len(everything),), 4)
        open_ended = TabularLanguageModel.random(3, 4, seed=1)
        assert not math.isclose(open_ended.token_log_probs(tokens, whole[: len(tokens)]).sum(1).exp().sum(), 1.0)


@pytest.mark.parametrize("eos", [None, 1])
def test_decoder_offers_what_the_scores_say(eos):
    """Two routes: walking the decoder along a sequence, and `token_log_probs`; unequal and empty contexts together."""
    model = TabularLanguageModel.random(3, 5, seed=2, eos_token_id=eos)
    contexts, copies, new = [[], [2, 0], [0]], 9, 2
    continuations = enumerate_sequences(3, new).repeat(len(contexts), 1)
    decoder = model.decoder()
    prefix, logits = decoder.prefill(contexts)
    for _ in range(2):  # a prefix may be forked again
        state = decoder.fork(prefix, copies=copies, max_new_tokens=new)
        first = logits.repeat_interleave(copies, dim=0)
        stepped = [first, decoder.step(state, continuations[:, 0])]
        for row, continuation in enumerate(continuations):
            whole = torch.tensor([[*contexts[row // copies], *continuation.tolist()]])
            scores = model.token_log_probs(whole, torch.tensor([whole.shape[1]]), first=whole.shape[1] - new)[0]
            walked = torch.stack([stepped[t][row, continuation[t]] for t in range(new)])
            assert_close(walked, scores, rtol=0, atol=0)


def test_after_eos_comes_eos():
    model = TabularLanguageModel.random(3, 3, seed=0, eos_token_id=1)
    assert model.next_log_probs([0, 1]).exp().tolist() == [0.0, 1.0, 0.0]


def test_random_tables_are_named_by_their_seed_and_shaped_by_their_concentration():
    first, again, other = (TabularLanguageModel.random(4, 3, seed=seed).log_probs_HV for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    peaked, flat = (TabularLanguageModel.random(4, 3, seed=0, concentration=c).log_probs_HV.exp() for c in (0.1, 100))
    assert peaked.amax(1).mean() > 0.7 > 0.4 > flat.amax(1).mean()


def test_energy_is_one_number_a_sequence_whatever_the_padding():
    energy = TabularEnergy.from_function(lambda x: 10 * len(x) + sum(x), vocabulary_size=3, length=3)
    tokens = torch.tensor([[2, 1, 0], [2, 99, 99], [0, 0, 2]])
    assert energy.energies(tokens, torch.tensor([3, 1, 3])).tolist() == [33, 12, 32]
    assert energy.energies(tokens, torch.tensor([2, 1, 0])).tolist() == [23, 12, 0]


def test_gradients_reach_the_table_of_energies():
    table = torch.zeros(history_count(2, 2), dtype=torch.float64, requires_grad=True)
    energy = TabularEnergy(table, vocabulary_size=2, length=2)
    energy.energies(torch.tensor([[1, 0], [1, 0]]), torch.tensor([2, 2])).sum().backward()
    assert table.grad.tolist() == [0, 0, 0, 0, 0, 2, 0]  # ( ), (0), (1), (00), (01), (10), (11)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: TabularLanguageModel(torch.zeros(3, 2), length=2), "normalised"),
        (lambda: TabularLanguageModel(torch.zeros(4, 2), length=2), "3 histories, came 4"),
        (lambda: TabularLanguageModel.random(2, 2, seed=0).decoder().prefill([[0, 1]]), "at most 2 tokens"),
        (lambda: TabularLanguageModel.random(2, 2, seed=0).next_log_probs([5]), "0 … 1"),
        (lambda: TabularEnergy(torch.zeros(6), vocabulary_size=2, length=2), r"\(7,\), came \(6,\)"),
        (lambda: TabularEnergy.random(2, 1, seed=0).energies(torch.zeros(1, 2).long(), torch.tensor([2])), "at most 1"),
    ],
)
def test_misuse_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()


def test_a_decoder_does_not_run_past_its_table():
    decoder = TabularLanguageModel.random(2, 3, seed=0).decoder()
    prefix, _ = decoder.prefill([[0]])
    with pytest.raises(ValueError, match="asked for 4"):
        decoder.fork(prefix, copies=1, max_new_tokens=3)
    state = decoder.fork(prefix, copies=1, max_new_tokens=2)
    decoder.step(state, torch.tensor([1]))
    with pytest.raises(ValueError, match="asked for 4"):
        decoder.step(state, torch.tensor([1]))
