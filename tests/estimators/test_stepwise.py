"""Step-wise probabilities with exact expectations: they sum to one, telescope, and the last step is enumeration."""

import pytest
import torch

from energylm.estimators.log_partition import LogPartition, log_partition
from energylm.estimators.position_perplexity import last_step_log_prob, stepwise_log_probs
from energylm.testing import TabularEnergy, TabularLanguageModel, exact_joint, exact_language_model

VOCABULARY, LENGTH = 4, 3
MODEL = TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1)
ENERGY = TabularEnergy.random(VOCABULARY, LENGTH, seed=2)
JOINT = exact_joint(MODEL, ENERGY, max_new_tokens=LENGTH)
TEXTS = JOINT.tokens
LENGTHS = torch.full((len(TEXTS),), LENGTH)
LM_LOG_PROB = MODEL.token_log_probs(TEXTS, LENGTHS)
LOG_WEIGHT = -ENERGY.energies(TEXTS, LENGTHS)


def exact_future(t):
    """log A_t of every text by summing over all futures, both ends equal."""
    base = exact_language_model(MODEL, max_new_tokens=LENGTH)
    values = []
    for text in TEXTS:
        same = (base.tokens[:, :t] == text[:t]).all(1)
        conditional = base.log_prob[same] - base.log_prob[same].logsumexp(0)
        values.append((conditional + LOG_WEIGHT[same]).logsumexp(0))
    value = torch.stack(values)
    return LogPartition(value, value, torch.zeros_like(value), torch.ones_like(value), torch.ones_like(value), n=2)


def test_exact_steps_are_the_joint_models_conditionals():
    lower, upper = stepwise_log_probs(LM_LOG_PROB, LOG_WEIGHT, [exact_future(t) for t in range(LENGTH)])
    torch.testing.assert_close(lower, upper)
    torch.testing.assert_close(lower.sum(1), JOINT.log_prob, atol=1e-10, rtol=0)
    for row, text in enumerate(TEXTS.tolist()):
        for t in range(LENGTH):
            expected = JOINT.next_token_log_probs(text[:t])[text[t]]
            assert float(lower[row, t]) == pytest.approx(float(expected), abs=1e-10)


def test_forgetting_the_numerator_is_caught():
    """Deliberate mistake: P_LM / A_t alone does not sum to one over the next token."""
    futures = [exact_future(t) for t in range(LENGTH)]
    first_step = {int(text[0]): row for row, text in enumerate(TEXTS)}
    right, _ = stepwise_log_probs(LM_LOG_PROB, LOG_WEIGHT, futures)
    wrong = LM_LOG_PROB[:, 0] - futures[0].lower
    rows = list(first_step.values())
    assert float(right[rows, 0].exp().sum()) == pytest.approx(1, abs=1e-10)
    assert abs(float(wrong[rows].exp().sum()) - 1) > 0.05


def test_intervals_cross_and_hold_the_exact_value():
    """With ends 0.1 below and above each log A_t the interval is 0.4 wide inside and 0.2 wide at the last step."""
    exact = [exact_future(t) for t in range(LENGTH)]
    loose = [LogPartition(f.lower - 0.1, f.upper + 0.1, f.standard_error, f.ess, f.largest_share, n=2) for f in exact]
    lower, upper = stepwise_log_probs(LM_LOG_PROB, LOG_WEIGHT, loose)
    middle, _ = stepwise_log_probs(LM_LOG_PROB, LOG_WEIGHT, exact)
    assert (lower < middle).all() and (middle < upper).all()
    widths = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    torch.testing.assert_close((upper - lower)[0], widths, atol=1e-10, rtol=0)


def test_the_last_step_equals_enumeration_and_the_estimators_agree():
    last = LENGTH - 1
    for text in TEXTS[::7].tolist():
        history = text[:last]
        every = torch.tensor([[*history, v] for v in range(VOCABULARY)])
        energy = ENERGY.energies(every, torch.full((VOCABULARY,), LENGTH))
        lm = MODEL.next_log_probs(history)
        got = last_step_log_prob(lm[None], energy[None], torch.tensor([text[last]]))
        assert float(got) == pytest.approx(float(JOINT.next_token_log_probs(history)[text[last]]), abs=1e-12)
        draws = torch.multinomial(lm.exp(), 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
        estimate = log_partition(-energy[draws][None])
        step = float(lm[text[last]] - energy[text[last]])
        assert step - float(estimate.upper) - 0.05 < float(got) < step - float(estimate.lower) + 0.05
