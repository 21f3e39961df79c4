"""Metropolis-Hastings on masked models, proved on languages whose every sequence and every random path is enumerated.

Target p(y) ∝ exp(−E(y)/τ) over all V^T sequences, E from a random table of masked logits, so that the conditionals
agree with no joint distribution. Each kernel is the production `step`, run through all its decisions.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from energylm.config.sampling import LOCAL, RAW, ChainsConfig, Truncation
from energylm.contracts import Choices
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.randomness import row_keys
from energylm.samplers.chains import LexicalConstraint
from energylm.samplers.choices import ChainChoices
from energylm.samplers.degenerate_gibbs import DegenerateGibbs
from energylm.samplers.epochs import run_epoch, run_epochs
from energylm.samplers.masked_proposal import MaskedProposal, Proposed
from energylm.samplers.metropolis_hastings import MetropolisHastings
from energylm.testing import (
    TabularMaskedModel,
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
STATES_ST = enumerate_sequences(V, T)
LENGTHS_S = torch.full((len(STATES_ST),), T)
MODEL = TabularMaskedModel.random(V, T, seed=0, scale=1.5)
ALL_V = torch.ones(V, dtype=torch.bool)
NUCLEUS = Truncation(top_p=0.7)
BLOCKS = [block for size in (1, 2, 3) for block in itertools.combinations(range(T), size)]


def energy(kind: str = LOCAL) -> MaskedLMEnergy:
    return MaskedLMEnergy(MODEL, kind=kind)


def target_of(kind: str = LOCAL, temperature: float = 1.0) -> Tensor:
    return (-energy(kind).energies(STATES_ST, LENGTHS_S) / temperature).softmax(0)


def hidden(block: tuple[int, ...], rows: int) -> Tensor:
    return torch.isin(torch.arange(T), torch.tensor(block)).expand(rows, T)


def step_kernel(sampler: MetropolisHastings | DegenerateGibbs, block: tuple[int, ...]) -> Callable[..., Tensor]:
    def kernel(states_RT: Tensor, choices: Choices) -> Tensor:
        state = sampler.init(states_RT, torch.full((len(states_RT),), T))
        return sampler.step(state, hidden(block, len(states_RT)), choices)[0].tokens_RT

    return kernel


def matrix(sampler: MetropolisHastings | DegenerateGibbs, block: tuple[int, ...]) -> Tensor:
    return exact_transition_matrix(STATES_ST, step_kernel(sampler, block))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", [RAW, LOCAL])
def test_every_block_keeps_the_target(kind: str, block: tuple[int, ...]) -> None:
    transition_SS = matrix(MetropolisHastings(energy(kind), MaskedProposal(ALL_V)), block)
    assert_stationary(target_of(kind), transition_SS)
    assert is_reversible(target_of(kind), transition_SS)
    other = LOCAL if kind == RAW else RAW
    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(target_of(other), transition_SS)


@pytest.mark.parametrize("block", [(1,), (0, 2)])
@pytest.mark.parametrize(
    "proposal",
    [
        MaskedProposal(ALL_V, Truncation(temperature=0.5)),
        MaskedProposal(ALL_V, Truncation(temperature=2.0)),
        MaskedProposal(ALL_V, NUCLEUS),
        MaskedProposal(ALL_V, Truncation(top_k=2, temperature=1.5)),
        MaskedProposal(ALL_V, Truncation(top_p=0.7, temperature=0.8), full_support=0.25),
    ],
    ids=["cold", "hot", "nucleus", "top-k", "nucleus and full support"],
)
def test_every_proposal_keeps_the_target(proposal: MaskedProposal, block: tuple[int, ...]) -> None:
    for temperature in (1.0, 0.4):
        sampler = MetropolisHastings(energy(), proposal, temperature)
        assert_stationary(target_of(temperature=temperature), matrix(sampler, block))


def test_full_support_moves_make_a_nucleus_chain_reach_every_sequence() -> None:
    """A token outside its nucleus is frozen: it can neither be left nor reached. A mixed-in move opens the way."""

    def sweep_matrix(proposal: MaskedProposal) -> Tensor:
        sampler = MetropolisHastings(energy(), proposal)
        return torch.linalg.multi_dot([matrix(sampler, (place,)) for place in range(T)])

    nucleus_SS = sweep_matrix(MaskedProposal(ALL_V, NUCLEUS))
    assert not is_irreducible(nucleus_SS)
    mixed_SS = sweep_matrix(MaskedProposal(ALL_V, NUCLEUS, full_support=0.1))
    assert is_irreducible(mixed_SS)
    torch.testing.assert_close(stationary_distribution(mixed_SS), target_of(), atol=1e-10, rtol=0)


def test_forbidden_tokens_and_constraints_restrict_the_target() -> None:
    """Token 2 may not be proposed, and 0 1 must stand somewhere: the target lives on what is left."""
    constraint = LexicalConstraint(required=(((0, 1),),))
    inside_S = constraint(STATES_ST, LENGTHS_S) & (STATES_ST != 2).all(1)
    states_ST = STATES_ST[inside_S]
    assert states_ST.tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 1]]
    sampler = MetropolisHastings(energy(), MaskedProposal(torch.tensor([True, True, False])), constraint=constraint)
    restricted_S = target_of()[inside_S] / target_of()[inside_S].sum()
    for block in BLOCKS:
        assert_stationary(restricted_S, exact_transition_matrix(states_ST, step_kernel(sampler, block)))


@dataclass(frozen=True)
class TableTarget:
    """Energies of all sequences from a table, +inf among them; proposals from the masked model."""

    energy_S: Tensor
    model: TabularMaskedModel = MODEL

    def energies(self, tokens_RT: Tensor, lengths_R: Tensor, **_: Tensor | None) -> Tensor:
        return self.energy_S[index_of(tokens_RT, STATES_ST)]

    def terms_at(self, logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
        return torch.zeros(len(tokens_N), dtype=torch.float64)


def matrix_by_loops(energies: list[float], block: tuple[int, ...], *, between_impossible: float) -> Tensor:
    """Algorithm 4 by loops over sequences; `between_impossible` is the acceptance where both have energy +inf."""
    states = STATES_ST.tolist()
    found_SS = torch.zeros(len(states), len(states), dtype=torch.float64)
    for i, old in enumerate(states):
        conditional_MV = MODEL.masked_logits(STATES_ST[i : i + 1], LENGTHS_S[:1], hidden(block, 1)).softmax(-1).tolist()
        for new_block in itertools.product(range(V), repeat=len(block)):
            new = list(old)
            for position, token in zip(block, new_block, strict=True):
                new[position] = token
            forward = math.prod(row[new[position]] for row, position in zip(conditional_MV, block, strict=True))
            reverse = math.prod(row[old[position]] for row, position in zip(conditional_MV, block, strict=True))
            j = states.index(new)
            if energies[j] == math.inf:
                accepted = between_impossible if energies[i] == math.inf else 0.0
            elif energies[i] == math.inf:
                accepted = 1.0
            else:
                accepted = min(1.0, math.exp(energies[i] - energies[j]) * reverse / forward)
            found_SS[i, j] += forward * accepted
            found_SS[i, i] += forward * (1 - accepted)
    return found_SS


@pytest.mark.parametrize("block", BLOCKS)
def test_between_impossible_sequences_the_chain_stays(block: tuple[int, ...]) -> None:
    """E(y) = +inf where 2 stands first or last: 15 of 27 sequences. The production matrix is that of the loops, and
    keeps the target; teeth: accepting a move from +inf to +inf is another matrix, and inf − inf is refused as NaN."""
    energy_S = torch.randn(len(STATES_ST), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    energy_S[(STATES_ST[:, 0] == 2) | (STATES_ST[:, -1] == 2)] = math.inf
    assert int(energy_S.isposinf().sum()) == 15
    transition_SS = matrix(MetropolisHastings(TableTarget(energy_S), MaskedProposal(ALL_V)), block)
    by_hand_SS = matrix_by_loops(energy_S.tolist(), block, between_impossible=0.0)
    torch.testing.assert_close(transition_SS, by_hand_SS, atol=1e-12, rtol=0)
    assert_stationary((-energy_S).softmax(0), transition_SS)
    accepting_SS = matrix_by_loops(energy_S.tolist(), block, between_impossible=1.0)
    assert (transition_SS - accepting_SS).abs().max() > 0.1
    with pytest.raises(ValueError, match="NaN; is an energy not finite"):
        ChainChoices(row_keys(0, torch.arange(1), torch.arange(1))).accept(torch.tensor([math.inf - math.inf]))


@dataclass(frozen=True)
class Faulty:
    """A proposal whose log-probabilities are changed by a mistake."""

    right: MaskedProposal
    mistake: Callable[[Tensor, Tensor, Tensor, Proposed], Proposed]

    def draw(self, tokens_RT: Tensor, hidden_RT: Tensor, logits_NV: Tensor, choices: Choices) -> Proposed:
        proposed = self.right.draw(tokens_RT, hidden_RT, logits_NV, choices)
        return self.mistake(tokens_RT, hidden_RT, logits_NV, proposed)


def reverse_dropped(_tokens: Tensor, _hidden: Tensor, _logits: Tensor, proposed: Proposed) -> Proposed:
    return Proposed(proposed.tokens_RT, proposed.log_forward_R, torch.zeros_like(proposed.log_reverse_R))


def reverse_not_truncated(tokens_RT: Tensor, hidden_RT: Tensor, logits_NV: Tensor, proposed: Proposed) -> Proposed:
    """The nucleus is renormalised forward; the way back is scored by the whole conditional."""
    each_N = logits_NV.log_softmax(-1).gather(1, tokens_RT[hidden_RT][:, None])[:, 0]
    rows_N = hidden_RT.nonzero(as_tuple=True)[0]
    reverse_R = torch.zeros(len(tokens_RT), dtype=torch.float64).index_add_(0, rows_N, each_N)
    return Proposed(proposed.tokens_RT, proposed.log_forward_R, reverse_R)


@pytest.mark.parametrize(("mistake", "truncation"), [(reverse_dropped, Truncation()), (reverse_not_truncated, NUCLEUS)])
def test_a_wrong_reverse_probability_is_caught(mistake: Callable[..., Proposed], truncation: Truncation) -> None:
    right = MaskedProposal(ALL_V, truncation)
    for block in [(1,), (0, 2)]:
        assert_stationary(target_of(), matrix(MetropolisHastings(energy(), right), block))
        with pytest.raises(AssertionError, match="not stationary"):
            assert_stationary(target_of(), matrix(MetropolisHastings(energy(), Faulty(right, mistake)), block))


def test_block_conditionals_taken_in_turn_but_scored_as_a_product_are_caught() -> None:
    """Each token of the block is drawn seeing the one drawn before it, but scored as if it had seen neither."""

    @dataclass(frozen=True)
    class InTurn(MaskedProposal):
        def draw(self, tokens_RT: Tensor, hidden_RT: Tensor, logits_NV: Tensor, choices: Choices) -> Proposed:
            drawn_RT, lengths_R = tokens_RT.clone(), torch.full((len(tokens_RT),), T)
            rows = len(tokens_RT)
            for place in (0, 2):
                still_RT = hidden((0, 2) if place == 0 else (2,), rows)
                logits_RMV = MODEL.masked_logits(drawn_RT, lengths_R, still_RT).view(rows, -1, V)
                drawn_RT[:, place] = choices.categorical(logits_RMV[:, 0])
            log_prob_RMV = logits_NV.log_softmax(-1).view(rows, 2, V)

            def product(of_RT: Tensor) -> Tensor:
                return log_prob_RMV.gather(2, of_RT[:, [0, 2], None])[..., 0].sum(1)

            return Proposed(drawn_RT, product(drawn_RT), product(tokens_RT))

    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(target_of(), matrix(MetropolisHastings(energy(), InTurn(ALL_V)), (0, 2)))


def test_a_block_chosen_by_looking_at_the_state_is_caught() -> None:
    """Hide the positions that equal the first token: the way back would often hide others."""
    sampler = MetropolisHastings(energy(), MaskedProposal(ALL_V))

    def kernel(states_RT: Tensor, choices: Choices) -> Tensor:
        state = sampler.init(states_RT, torch.full((len(states_RT),), T))
        return sampler.step(state, states_RT == states_RT[:, :1], choices)[0].tokens_RT

    with pytest.raises(AssertionError, match="not stationary"):
        assert_stationary(target_of(), exact_transition_matrix(STATES_ST, kernel))


def test_a_random_order_epoch_keeps_the_target_and_a_fixed_one_is_not_reversible() -> None:
    sampler = MetropolisHastings(energy(), MaskedProposal(ALL_V))
    single = [matrix(sampler, (place,)) for place in range(T)]
    orders = [torch.linalg.multi_dot([single[place] for place in order]) for order in itertools.permutations(range(T))]
    assert_stationary(target_of(), torch.stack(orders).mean(0))
    assert_stationary(target_of(), orders[0])
    assert not is_reversible(target_of(), orders[0])


@pytest.mark.parametrize(("order", "block"), [("random", 1), ("sequential", 1), ("random", 2)])
def test_the_epoch_that_runs_in_production_keeps_the_target(order: str, block: int) -> None:
    """Every path of a whole epoch, the drawn order included, over two tokens of length two."""
    model = TabularMaskedModel.random(2, 2, seed=3)
    states_ST, target = enumerate_sequences(2, 2), MaskedLMEnergy(model, kind=RAW)
    sampler = MetropolisHastings(target, MaskedProposal(torch.ones(2, dtype=torch.bool)))

    def kernel(states_RT: Tensor, choices: Choices) -> Tensor:
        lengths_R = torch.full((len(states_RT),), 2)
        state = sampler.init(states_RT, lengths_R)
        blocks_R = torch.full_like(lengths_R, block)
        free_RT = torch.ones_like(states_RT, dtype=torch.bool)
        return run_epoch(sampler, state, free_RT, choices, order=order, block_R=blocks_R)[0].tokens_RT

    target_4 = (-target.energies(states_ST, torch.full((4,), 2))).softmax(0)
    assert_stationary(target_4, exact_transition_matrix(states_ST, kernel))


def test_degenerate_gibbs_has_neither_energy_for_its_target() -> None:
    """Its stationary distribution differs from both by a lot, and depends on the order of the positions."""
    gibbs = DegenerateGibbs(MODEL, MaskedProposal(ALL_V))
    single = [matrix(gibbs, (place,)) for place in range(T)]
    forward_S = stationary_distribution(torch.linalg.multi_dot(single))
    backward_S = stationary_distribution(torch.linalg.multi_dot(single[::-1]))
    for kind in (RAW, LOCAL):
        assert (forward_S - target_of(kind)).abs().sum() / 2 > 0.1  # total variation
    assert (forward_S - backward_S).abs().sum() / 2 > 0.01
    block_SS = matrix(gibbs, (0, 2)) @ single[1]
    assert (stationary_distribution(block_SS) - target_of()).abs().sum() / 2 > 0.1


def test_inconsistent_conditionals_of_the_paper_have_no_joint_but_an_energy() -> None:
    """§6.2.1: p(y1 | y2) says y1 copies y2 (0.99), p(y2 | y1) says y2 is a coin. By Bayes' rule p(aa)/p(ab) would be
    1 by the second and, up to p(y2), 99 by the first; Gibbs settles where its last coin leaves it, MH on exp(−E)."""
    readings = torch.zeros(1, 2, 9, 2, dtype=torch.float64)
    for y2 in range(2):  # position 0 hidden: code 3·2 + y2
        readings[0, 0, 6 + y2] = torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64)[y2].log()
    for y1 in range(2):  # position 1 hidden: code 3·y1 + 2
        readings[0, 1, 3 * y1 + 2] = math.log(0.5)
    model = TabularMaskedModel(readings, vocabulary_size=2, length=2)
    states_ST = enumerate_sequences(2, 2)
    lengths_S = torch.full((4,), 2)
    proposal = MaskedProposal(torch.ones(2, dtype=torch.bool))

    def swept(sampler: MetropolisHastings | DegenerateGibbs, places: tuple[int, ...]) -> Tensor:
        steps = []
        for place in places:
            mask_T = torch.arange(2) == place

            def kernel(states_RT: Tensor, choices: Choices, mask_T: Tensor = mask_T) -> Tensor:
                state = sampler.init(states_RT, torch.full((len(states_RT),), 2))
                return sampler.step(state, mask_T.expand_as(states_RT), choices)[0].tokens_RT

            steps.append(exact_transition_matrix(states_ST, kernel))
        return stationary_distribution(torch.linalg.multi_dot(steps))

    copies = torch.tensor([0.99, 0.01, 0.01, 0.99], dtype=torch.float64) / 2
    gibbs = DegenerateGibbs(model, proposal)
    torch.testing.assert_close(swept(gibbs, (1, 0)), copies)  # y1 was drawn last, and copies y2
    torch.testing.assert_close(swept(gibbs, (0, 1)), torch.full((4,), 0.25, dtype=torch.float64))
    energies = MaskedLMEnergy(model, kind=LOCAL)
    for places in [(0, 1), (1, 0)]:
        swept_S = swept(MetropolisHastings(energies, proposal), places)
        torch.testing.assert_close(swept_S, (-energies.energies(states_ST, lengths_S)).softmax(0))


def test_chains_that_start_in_the_target_end_in_the_target() -> None:
    """20,000 chains, each its own draw from the exact target, after 5 epochs of blocks in random order: chi-square of
    the end states, false alarm 1e-4. The same chains under degenerate Gibbs fail it."""
    chains, target = 20_000, target_of()
    generator = torch.Generator().manual_seed(0)
    start_C = torch.multinomial(target, chains, replacement=True, generator=generator)
    assert_same_distribution(start_C.bincount(minlength=len(target)), target)
    lengths_C = torch.full((chains,), T)
    free_CT = torch.ones(chains, T, dtype=torch.bool)
    proposal = MaskedProposal(ALL_V, NUCLEUS, full_support=0.1)
    ends = {}
    for name in ("mh", "gibbs"):
        config = ChainsConfig(sampler=name, epochs=5, burn_in=0, block=2)
        choices = ChainChoices(row_keys(1, torch.arange(chains), torch.zeros(chains, dtype=torch.int64)))
        state = MetropolisHastings(energy(), proposal).init(STATES_ST[start_C], lengths_C)
        *_, last = run_epochs(energy(), proposal, state, free_CT, choices, config=config)
        ends[name] = index_of(last.state.tokens_RT, STATES_ST).bincount(minlength=len(target))
        torch.testing.assert_close(last.state.energy_R, energy().energies(last.state.tokens_RT, lengths_C))
    assert_same_distribution(ends["mh"], target)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_same_distribution(ends["gibbs"], target)


def test_rows_of_other_lengths_sources_and_fixed_positions_travel_together() -> None:
    """A row's end state is the same alone as in a batch of rows with other lengths, sources and free positions."""
    model = TabularMaskedModel.random(4, 4, seed=5, sources=2)
    target = MaskedLMEnergy(model)
    proposal = MaskedProposal(torch.ones(4, dtype=torch.bool), Truncation(top_p=0.9), full_support=0.2)
    tokens_RT = torch.tensor([[0, 1, 2, 3], [3, 1, 0, 0], [2, 2, 2, 2]])
    lengths_R, source_R = torch.tensor([4, 2, 4]), torch.tensor([0, 1, 1])
    free_RT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    config = ChainsConfig(epochs=6, burn_in=2, forced_epochs=2, block=2)

    def ends(rows: list[int]) -> list[list[int]]:
        choices = ChainChoices(row_keys(7, torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64)))
        sampler = MetropolisHastings(target, proposal)
        state = sampler.init(tokens_RT[rows], lengths_R[rows], source_R=source_R[rows])
        *_, last = run_epochs(target, proposal, state, free_RT[rows], choices, config=config)
        assert (last.state.tokens_RT[~free_RT[rows]] == tokens_RT[rows][~free_RT[rows]]).all()
        return last.state.tokens_RT.tolist()

    together = ends([0, 1, 2])
    for row in range(3):
        assert together[row] == ends([row])[0]
        assert together[row] == ends([(row + 1) % 3, row])[1]


def test_a_resumed_run_ends_where_an_unbroken_one_does() -> None:
    target, proposal = energy(), MaskedProposal(ALL_V)
    config = ChainsConfig(epochs=8, burn_in=1, block=2)
    free_RT = torch.ones(5, T, dtype=torch.bool)
    keys_R = row_keys(2, torch.arange(5), torch.zeros(5, dtype=torch.int64))
    start = MetropolisHastings(target, proposal).init(STATES_ST[:5], LENGTHS_S[:5])
    choices = ChainChoices(keys_R)
    *_, last = run_epochs(target, proposal, start, free_RT, choices, config=config)
    choices = ChainChoices(keys_R)
    for epoch in run_epochs(target, proposal, start, free_RT, choices, config=config):
        if epoch.index == 3:
            break
    resumed = ChainChoices(keys_R, decided_R=choices.decided_R)
    *_, again = run_epochs(target, proposal, epoch.state, free_RT, resumed, config=config, first_epoch=4)
    assert again.state.tokens_RT.tolist() == last.state.tokens_RT.tolist()
