"""Transition matrices of batched samplers: by hand, proved stationary, and every classical mistake caught."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.testing import (
    TabularEnergy,
    assert_same_distribution,
    assert_stationary,
    enumerate_sequences,
    exact_transition_matrix,
    index_of,
    is_irreducible,
    is_reversible,
    stationary_distribution,
)

V, T = 3, 3
STATES = enumerate_sequences(V, T)
ENERGY = TabularEnergy.random(V, T, seed=0)
PROPOSAL_LOGITS = torch.randn(T, V**2, V, generator=torch.Generator().manual_seed(0)).double()
LENGTHS = torch.full((len(STATES),), T)
TARGET = (-ENERGY.energies(STATES, LENGTHS)).softmax(0)


def conditional(tokens_RT, position):
    """(R, V) logits of a proposal at `position`, which sees all other positions but not this one (a masked model)."""
    others = [p for p in range(T) if p != position]
    return PROPOSAL_LOGITS[position, tokens_RT[:, others[0]] * V + tokens_RT[:, others[1]]]


def nucleus(logits_RV, *, keep):
    outside_RV = logits_RV.argsort(-1, descending=True).argsort(-1) >= keep
    return logits_RV.masked_fill(outside_RV, -math.inf).log_softmax(-1)


def log_target(tokens_RT):
    return -ENERGY.energies(tokens_RT, torch.full((len(tokens_RT),), T))


def metropolis(tokens_RT, choices, *, position, keep=V, mistake=None):
    """One Metropolis-Hastings step at `position`, for many chains at once."""
    log_q_RV = nucleus(conditional(tokens_RT, position), keep=keep)
    old_R, new_R = tokens_RT[:, position], choices.categorical(log_q_RV)
    proposed_RT = tokens_RT.clone()
    proposed_RT[:, position] = new_R
    forward_R, backward_R = (log_q_RV.gather(1, token_R[:, None])[:, 0] for token_R in (new_R, old_R))
    if mistake == "no reverse probability":
        forward_R = backward_R = torch.zeros_like(forward_R)
    if mistake == "reverse not truncated":
        backward_R = conditional(tokens_RT, position).log_softmax(-1).gather(1, old_R[:, None])[:, 0]
    log_ratio_R = log_target(proposed_RT) - log_target(tokens_RT) + backward_R - forward_R
    accepted_R = choices.accept(log_ratio_R)
    if mistake == "row 0 decides":
        accepted_R = accepted_R[:1].expand_as(accepted_R)
    return torch.where(accepted_R[:, None], proposed_RT, tokens_RT)


def random_scan(tokens_RT, choices):
    """Each row draws its own position, then moves there."""
    rows = torch.arange(len(tokens_RT))
    position_R = choices.categorical(torch.zeros(len(tokens_RT), T))
    log_q_RV = torch.stack([conditional(tokens_RT, p) for p in range(T)], dim=1)[rows, position_R].log_softmax(-1)
    old_R, new_R = tokens_RT[rows, position_R], choices.categorical(log_q_RV)
    proposed_RT = tokens_RT.clone()
    proposed_RT[rows, position_R] = new_R
    correction_R = log_q_RV[rows, old_R] - log_q_RV[rows, new_R]
    accepted_R = choices.accept(log_target(proposed_RT) - log_target(tokens_RT) + correction_R)
    return torch.where(accepted_R[:, None], proposed_RT, tokens_RT)


def at(position, **options):
    return lambda tokens, choices: metropolis(tokens, choices, position=position, **options)


def test_two_states_by_hand():
    """Flip with probability 1, accept 0 → 1 with 1/2 and 1 → 0 always: P = [[1/2, 1/2], [1, 0]], π = (2/3, 1/3)."""
    states = torch.tensor([[0], [1]])

    def flip(tokens_RT, choices):
        accepted_R = choices.accept(torch.where(tokens_RT[:, 0] == 0, math.log(0.5), 0.0))
        return torch.where(accepted_R[:, None], 1 - tokens_RT, tokens_RT)

    transition = exact_transition_matrix(states, flip)
    assert_close(transition, torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64))
    assert_close(stationary_distribution(transition), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("position", range(T))
def test_metropolis_keeps_its_target(position):
    transition = exact_transition_matrix(STATES, at(position))
    assert_stationary(TARGET, transition)
    assert is_reversible(TARGET, transition)
    assert not is_irreducible(transition)  # one position alone never changes the others


def test_random_scan_has_its_target_as_the_only_one():
    transition = exact_transition_matrix(STATES, random_scan)
    assert is_irreducible(transition) and is_reversible(TARGET, transition)
    assert_close(stationary_distribution(transition), TARGET, rtol=0, atol=1e-10)


def test_a_sweep_is_stationary_but_not_reversible_and_equals_the_product_of_its_steps():
    def sweep(tokens_RT, choices):
        for position in range(2):
            tokens_RT = metropolis(tokens_RT, choices, position=position)
        return tokens_RT

    walked = exact_transition_matrix(STATES, sweep)
    first, second = (exact_transition_matrix(STATES, at(position)) for position in range(2))
    assert_close(walked, first @ second, rtol=0, atol=1e-12)
    assert_stationary(TARGET, walked)
    assert not is_reversible(TARGET, walked)


def test_a_random_order_keeps_the_target_only_if_it_ignores_the_state():
    steps = [exact_transition_matrix(STATES, at(position)) for position in range(T)]
    orders = [steps[a] @ steps[b] @ steps[c] for a, b, c in itertools.permutations(range(T))]
    assert_stationary(TARGET, sum(orders) / len(orders))

    def looks_at_the_state(tokens_RT, choices):
        moved = torch.stack([metropolis(tokens_RT, choices, position=p) for p in range(T)], dim=1)
        return moved[torch.arange(len(tokens_RT)), tokens_RT[:, 0]]  # the mistake: the position is a token of the state

    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(TARGET, exact_transition_matrix(STATES, looks_at_the_state))


@pytest.mark.parametrize("mistake", ["no reverse probability", "reverse not truncated"])
def test_classical_mistakes_are_caught(mistake):
    assert_stationary(TARGET, exact_transition_matrix(STATES, at(1, keep=2)))
    with pytest.raises(AssertionError, match="not stationary: state"):
        assert_stationary(TARGET, exact_transition_matrix(STATES, at(1, keep=2, mistake=mistake)))


def test_a_nucleus_makes_the_chain_fall_apart():
    """A token outside the nucleus is neither left nor reached: the target is kept, but it is not the only one."""
    together = sum(exact_transition_matrix(STATES, at(position, keep=2)) for position in range(T)) / T
    assert_stationary(TARGET, together)
    assert not is_irreducible(together)
    with pytest.raises(ValueError, match="more than one stationary"):
        stationary_distribution(together)


def test_rows_together_equal_rows_apart_unless_they_are_mixed_up():
    for rows_at_once in (1, 4):
        assert_close(
            exact_transition_matrix(STATES, random_scan, rows_at_once=rows_at_once),
            exact_transition_matrix(STATES, random_scan),
        )
    mixed_up = at(0, mistake="row 0 decides")
    assert_stationary(TARGET, exact_transition_matrix(STATES, mixed_up, rows_at_once=1))  # one chain shows nothing …
    with pytest.raises(AssertionError, match="depends on other rows"):  # … a batch does
        exact_transition_matrix(STATES, mixed_up)


def test_drawn_chains_move_as_the_matrix_says():
    """20,000 chains from one state, one step of the same code with drawn decisions (false alarm 1e-4)."""
    transition = exact_transition_matrix(STATES, random_scan)
    choices = RowChoices(row_keys(0, torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64)))
    after = index_of(random_scan(STATES[5].expand(20_000, -1), choices), STATES)
    assert_same_distribution(torch.bincount(after, minlength=len(STATES)), transition[5])
    with pytest.raises(AssertionError):
        assert_same_distribution(torch.bincount(after, minlength=len(STATES)), transition[6])


def test_kernels_may_work_in_place():
    def in_place(tokens_RT, choices):
        tokens_RT[:, 0] = choices.categorical(torch.zeros(len(tokens_RT), V))
        return tokens_RT

    before = STATES.clone()
    assert_stationary(torch.full((len(STATES),), 1 / len(STATES)), exact_transition_matrix(STATES, in_place))
    assert torch.equal(STATES, before)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: assert_stationary(TARGET, torch.zeros(27, 27).double()), "sum 1"),
        (lambda: assert_stationary(TARGET * 2, torch.eye(27).double()), "sums to 2"),
        (lambda: is_irreducible(torch.full((2, 2), math.nan)), "sum 1"),
        (lambda: exact_transition_matrix(STATES[:5], at(0)), "outside the universe"),
    ],
)
def test_misuse_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()
