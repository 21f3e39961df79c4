"""Partition functions, joints and conditionals: by hand, against a plain loop over sequences, and with mistakes."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from energylm.testing import TabularEnergy, TabularLanguageModel, exact_joint, exact_language_model

EOS = 2


def test_log_partition_by_hand():
    """One token, P = (1/4, 3/4), E = (0, log 3): Z = 1/4 + 3/4 · 1/3 = 1/2, and the joint is (1/2, 1/2)."""
    model = TabularLanguageModel.from_function(lambda h: [0.25, 0.75], vocabulary_size=2, length=1)
    energy = TabularEnergy.from_function(lambda x: math.log(3) if x == (1,) else 0.0, vocabulary_size=2, length=1)
    joint = exact_joint(model, energy, max_new_tokens=1)
    assert math.isclose(joint.log_partition, math.log(0.5))
    assert_close(joint.probabilities, torch.tensor([0.5, 0.5], dtype=torch.float64))
    flipped = TabularEnergy(-energy.table, vocabulary_size=2, length=1)  # the mistake: the energy's sign
    assert not math.isclose(exact_joint(model, flipped, max_new_tokens=1).log_partition, math.log(0.5))


@pytest.mark.parametrize("eos", [None, EOS])
def test_joint_equals_a_plain_loop(eos):
    """A second route without tensors: Python floats over `itertools.product`, cutting at EOS by hand."""
    model = TabularLanguageModel.random(3, 5, seed=0, eos_token_id=eos)
    energy = TabularEnergy.random(3, 5, seed=1, scale=2.0)
    context, new = (1, 0), 3
    weight = {}
    for sequence in itertools.product(range(3), repeat=new):
        kept = sequence[: sequence.index(eos) + 1] if eos in sequence else sequence
        log_weight, history = 0.0, context
        for token in kept:
            log_weight += float(model.next_log_probs(history)[token])
            history = (*history, token)
        tokens = torch.tensor([history])
        weight[kept] = math.exp(log_weight - float(energy.energies(tokens, torch.tensor([len(history)]))))
    joint = exact_joint(model, energy, context, max_new_tokens=new)
    assert math.isclose(joint.log_partition, math.log(math.fsum(weight.values())), rel_tol=1e-12)
    assert len(joint.tokens) == len(weight)
    for tokens, length, probability in zip(joint.tokens, joint.lengths, joint.probabilities, strict=True):
        kept = tuple(tokens[:length].tolist())
        assert math.isclose(probability, weight[kept] / math.fsum(weight.values()), rel_tol=1e-11)


@pytest.mark.parametrize("eos", [None, EOS])
def test_marginalising_a_language_model_gives_back_its_conditionals(eos):
    model = TabularLanguageModel.random(3, 4, seed=3, eos_token_id=eos)
    exact = exact_language_model(model, [0], max_new_tokens=3)
    for prefix in [(), (1,), (0, 1), (1, 1)]:
        assert_close(exact.next_token_log_probs(prefix), model.next_log_probs([0, *prefix]))


@pytest.mark.parametrize("eos", [None, EOS])
def test_joint_conditionals_multiply_to_the_joint(eos):
    """The chain rule holds with the future marginalised, and fails with the shortcut P_LM · exp(−E(prefix))."""
    model = TabularLanguageModel.random(3, 3, seed=4, eos_token_id=eos)
    energy = TabularEnergy.random(3, 3, seed=5)
    joint = exact_joint(model, energy, max_new_tokens=3)
    for tokens, length, log_prob in zip(joint.tokens.tolist(), joint.lengths, joint.log_prob, strict=True):
        steps = [joint.next_token_log_probs(tokens[:t])[tokens[t]] for t in range(length)]
        assert math.isclose(sum(steps), log_prob, rel_tol=1e-11)
    candidates, one = torch.arange(3)[:, None], torch.ones(3, dtype=torch.int64)
    shortcut = (model.next_log_probs([]) - energy.energies(candidates, one)).log_softmax(0)
    assert (shortcut - joint.next_token_log_probs()).abs().max() > 0.05


def test_energies_of_a_hundred_do_not_overflow():
    model = TabularLanguageModel.random(2, 3, seed=0)
    energy = TabularEnergy.random(2, 3, seed=0, scale=1.0)
    shifted = TabularEnergy(energy.table - 1000.0, vocabulary_size=2, length=3)
    one, other = (exact_joint(model, e, max_new_tokens=3) for e in (energy, shifted))
    assert_close(one.log_prob, other.log_prob)  # a shift of the energy cancels in the joint …
    assert math.isclose(other.log_partition, one.log_partition + 1000.0)  # … and moves log Z


def test_counts_ignore_what_stands_after_the_end():
    model = TabularLanguageModel.random(3, 3, seed=0, eos_token_id=EOS)
    exact = exact_language_model(model, max_new_tokens=3)
    tokens, lengths = torch.tensor([[0, EOS, 0], [0, EOS, 1], [0, 1, 0]]), torch.tensor([2, 2, 3])
    counts = exact.counts(tokens, lengths)
    assert counts[exact.index(torch.tensor([[0, EOS, EOS]]))] == 2 and counts.sum() == 3
    with pytest.raises(ValueError, match="outside the universe"):
        exact.counts(tokens)


def test_a_model_that_is_not_normalised_is_found_out():
    class Leaky(TabularLanguageModel):
        def token_log_probs(self, tokens_BT, lengths_B, *, first=0):
            return 0.9 * super().token_log_probs(tokens_BT, lengths_B, first=first)

    with pytest.raises(AssertionError, match="not a normalised language model"):
        exact_language_model(Leaky.random(3, 2, seed=0), max_new_tokens=2)


def test_energies_that_are_not_finite_are_found_out():
    energy = TabularEnergy.from_function(lambda x: float("nan") if x == (1, 1) else 0.0, vocabulary_size=2, length=2)
    with pytest.raises(AssertionError, match="1 of 4 energies are not finite"):
        exact_joint(TabularLanguageModel.random(2, 2, seed=0), energy, max_new_tokens=2)


def test_nothing_is_conditional_on_the_impossible():
    model = TabularLanguageModel.from_function(lambda h: [1.0, 0.0], vocabulary_size=2, length=2)
    exact = exact_language_model(model, max_new_tokens=2)
    with pytest.raises(ValueError, match="probability zero"):
        exact.next_token_log_probs([1])
    with pytest.raises(ValueError, match="nothing follows"):
        exact.next_token_log_probs([0, 0])
