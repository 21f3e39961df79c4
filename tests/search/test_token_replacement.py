"""Gradient-guided replacement: first order against exact differences, the best edit against brute force, the limits.

A linear energy E(x) = Σ_t a_t · u[x_t] has E(x with v at t) − E(x) = a_t (u[v] − u[x_t]): first order is exact. With
embeddings of width D it is Σ_t a_t · (w · e[x_t]), the same with u = e·w.
"""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from energylm.search.token_replacement import (
    best_replacements,
    first_order_changes,
    replace_tokens,
    with_replacements,
)

VOCABULARY, LENGTH, WIDTH = 11, 7, 5
TOKENS = torch.tensor([3, 3, 0, 10, 7, 2, 5])


class PositionedEnergy(nn.Module):
    """E(x) = Σ_t a_t (w · e[x_t]) + curvature · (Σ_t a_t (w · e[x_t]))²; linear without the last term. Counts calls."""

    def __init__(self, *, curvature: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(
            VOCABULARY, WIDTH, _weight=torch.randn(VOCABULARY, WIDTH, generator=draw).double()
        )
        self.weight_D = torch.randn(WIDTH, generator=draw).double()
        self.place_T = torch.randn(LENGTH, generator=draw).double()
        self.curvature = curvature
        self.backward_passes = self.scored_batches = 0

    def of_embeddings(self, embedded_BTD: Tensor) -> Tensor:
        linear_B = (embedded_BTD @ self.weight_D) @ self.place_T
        return linear_B + self.curvature * linear_B**2

    @torch.no_grad()
    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        self.scored_batches += 1
        return self.of_embeddings(self.embedding(tokens_BT))

    def token_gradients(self, tokens_T: Tensor) -> tuple[float, Tensor]:
        self.backward_passes += 1
        embedded_TD = self.embedding(tokens_T).detach().requires_grad_()
        energy = self.of_embeddings(embedded_TD[None])[0]
        return float(energy.detach()), torch.autograd.grad(energy, embedded_TD)[0]

    @property
    def token_table(self) -> Tensor:
        return self.embedding.weight.detach()


def exact_changes(energy, tokens_T):
    """(T, V) by brute force: every replacement made and scored."""
    here = float(energy.energies(tokens_T[None], torch.tensor([LENGTH]))[0])
    changes = torch.empty(LENGTH, VOCABULARY, dtype=torch.float64)
    for place in range(LENGTH):
        for token in range(VOCABULARY):
            other = tokens_T.clone()
            other[place] = token
            changes[place, token] = float(energy.energies(other[None], torch.tensor([LENGTH]))[0]) - here
    return changes


def test_first_order_is_exact_for_a_linear_energy():
    energy = PositionedEnergy()
    _, gradient = energy.token_gradients(TOKENS)
    table, exact = energy.token_table, exact_changes(energy, TOKENS)
    assert_close(first_order_changes(gradient, table, TOKENS), exact, atol=1e-12, rtol=0)
    # Teeth: the term of the present token forgotten, and the sign turned round, are seen by the same check.
    forgotten, turned = gradient @ table.T, first_order_changes(-gradient, table, TOKENS)
    assert (forgotten - exact).abs().max() > 0.1 and (turned - exact).abs().max() > 0.1
    assert not torch.equal(forgotten.argmax(), exact.argmax()), "on one text the forgotten term would not matter"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_best_replacement_is_that_of_brute_force_over_position_and_vocabulary(sign):
    energy = PositionedEnergy(seed=1)
    exact = sign * exact_changes(energy, TOKENS)
    _, gradient = energy.token_gradients(TOKENS)
    gains = sign * first_order_changes(gradient, energy.token_table, TOKENS)
    positions, tokens = best_replacements(gains, count=1)
    best = max((float(exact[p, v]), p, v) for p in range(LENGTH) for v in range(VOCABULARY))
    assert (int(positions[0]), int(tokens[0])) == best[1:]
    # Teeth: an index that is unfolded by the wrong axis leads elsewhere.
    assert (best[1] * VOCABULARY + best[2]) // LENGTH != best[1]


@pytest.mark.parametrize("count", [1, 5, LENGTH, 2 * LENGTH + 3, LENGTH * VOCABULARY, 1000])
def test_candidates_are_the_best_of_each_position_then_the_second_best(count):
    """By brute force: every position's tokens ranked, then all pairs ordered by rank first and gain second."""
    gains = torch.randn(LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(5))
    gains[2, 3:] = -math.inf
    gains[4] = -math.inf
    pairs = []
    for place in range(LENGTH):
        ranked = sorted(range(VOCABULARY), key=lambda token: -float(gains[place, token]))
        pairs += [(rank, -float(gains[place, token]), place, token) for rank, token in enumerate(ranked)]
    rounds = math.ceil(count / (LENGTH - 1))  # one position is closed
    chosen = [(p, v) for rank, loss, p, v in sorted(pairs) if loss < math.inf and rank < rounds]
    positions, tokens = best_replacements(gains, count=count)
    assert list(zip(positions.tolist(), tokens.tolist(), strict=True)) == chosen[:count]


def test_what_is_excluded_is_never_chosen():
    gains = torch.tensor([[1.0, -math.inf], [-math.inf, 2.0]])
    assert [part.tolist() for part in best_replacements(gains, count=4)] == [[1, 0], [1, 0]]  # positions, tokens
    assert all(len(part) == 0 for part in best_replacements(torch.full((2, 2), -math.inf), count=4))


def test_copies_have_one_replacement_each():
    copies = with_replacements(torch.tensor([1, 2, 3]), torch.tensor([2, 0]), torch.tensor([9, 8]))
    assert copies.tolist() == [[1, 2, 9], [8, 2, 3]]


@pytest.mark.parametrize(("towards", "sign"), [("real", -1.0), ("fake", 1.0)])
def test_greedy_edits_of_a_linear_energy_are_the_best_of_each_position(towards, sign):
    """Positions do not interact, so n greedy edits are the n positions whose best replacement gains the most."""
    energy = PositionedEnergy()
    exact = sign * exact_changes(energy, TOKENS)
    gain_T, token_T = exact.max(dim=1)
    order = gain_T.argsort(descending=True)[:3]
    path = replace_tokens(energy, TOKENS, towards=towards, goal=None, max_edits=3, candidates=4)
    assert [(edit.position, edit.after) for edit in path.edits] == [(int(p), int(token_T[p])) for p in order]
    assert path.stopped == "edits" and [edit.before for edit in path.edits] == TOKENS[order].tolist()
    steps = [path.energy, *(edit.energy for edit in path.edits)]
    assert_close(torch.tensor(steps).diff(), sign * gain_T[order].float())
    assert_close(torch.tensor([edit.predicted_change for edit in path.edits]), sign * gain_T[order].float())
    after = torch.tensor(path.tokens_after())
    assert float(energy.energies(after[None], torch.tensor([LENGTH]))[0]) == pytest.approx(path.edits[-1].energy)
    assert path.tokens_after(1) != path.tokens_after() and path.tokens == tuple(TOKENS.tolist())


def test_one_backward_pass_and_one_scored_batch_an_edit():
    energy = PositionedEnergy()
    path = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=4)
    assert len(path.edits) == 4
    assert (energy.backward_passes, energy.scored_batches) == (4, 1 + 4)  # the text itself, then the candidates


def test_first_order_only_proposes_and_exact_energies_decide():
    """Strong curvature makes first order overshoot: what it likes best is not always what is best."""
    energy = PositionedEnergy(curvature=0.8, seed=2)
    exact = exact_changes(energy, TOKENS)
    _, gradient = energy.token_gradients(TOKENS)
    predicted = first_order_changes(gradient, energy.token_table, TOKENS)
    assert int(predicted.argmin()) != int(exact.argmin())
    path = replace_tokens(energy, TOKENS, towards="real", goal=None, max_edits=1, candidates=LENGTH * VOCABULARY)
    (edit,) = path.edits
    assert edit.position * VOCABULARY + edit.after == int(exact.argmin())
    few = replace_tokens(energy, TOKENS, towards="real", goal=None, max_edits=1, candidates=1)
    assert not few.edits or few.edits[0].energy >= edit.energy


def test_stops_at_the_goal_and_not_before():
    energy = PositionedEnergy()
    free = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=5)
    goal = (free.edits[1].energy + free.edits[2].energy) / 2
    path = replace_tokens(energy, TOKENS, towards="fake", goal=goal, max_edits=5)
    assert path.stopped == "reached" and path.edits == free.edits[:3]
    done = replace_tokens(energy, TOKENS, towards="fake", goal=free.energy - 1, max_edits=5)
    assert done.stopped == "reached" and not done.edits
    turned = replace_tokens(energy, TOKENS, towards="real", goal=free.energy - 1e9, max_edits=2)
    assert turned.stopped == "edits"


def test_fixed_positions_forbidden_tokens_and_edited_positions_stay():
    energy = PositionedEnergy()
    free = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=LENGTH)
    first = free.edits[0]
    assert len({edit.position for edit in free.edits}) == len(free.edits)
    editable = torch.ones(LENGTH, dtype=torch.bool)
    editable[first.position] = False
    fixed = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=LENGTH, editable_T=editable)
    assert first.position not in {edit.position for edit in fixed.edits} and fixed.edits
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    allowed[first.after] = False
    other = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=LENGTH, allowed_V=allowed)
    assert first.after not in {edit.after for edit in other.edits} and other.edits
    nowhere = torch.zeros(LENGTH, dtype=torch.bool)
    assert replace_tokens(energy, TOKENS, towards="fake", goal=None, editable_T=nowhere).stopped == "stuck"


def test_no_edit_is_taken_that_does_not_help():
    """At the best text there is, everything else is worse: first order may propose, nothing is taken."""
    energy = PositionedEnergy()
    best = replace_tokens(energy, TOKENS, towards="real", goal=None, max_edits=LENGTH)
    there = torch.tensor(best.tokens_after())
    again = replace_tokens(energy, there, towards="real", goal=None, max_edits=3)
    assert again.stopped == "stuck" and not again.edits and again.energy == pytest.approx(best.edits[-1].energy)


def test_a_budget_of_the_language_model_is_kept_at_every_step():
    """A unigram model with −log p(v) = 10 − v: the budget bounds Σ_t (10 − x_t)."""
    calls = []

    def nll(tokens_KT):
        calls.append(len(tokens_KT))
        return (10 - tokens_KT).double().sum(1)

    energy = PositionedEnergy()
    free = replace_tokens(energy, TOKENS, towards="fake", goal=None, max_edits=5, nll=nll)
    assert max(calls) == 1, "without a budget only what is taken is told"
    budget = free.nll + 1.0
    assert any(edit.nll > budget for edit in free.edits), "else the budget would not bind"
    kept = replace_tokens(
        energy, TOKENS, towards="fake", goal=None, max_edits=5, candidates=VOCABULARY * LENGTH, nll=nll, max_nll=budget
    )
    assert kept.edits and all(edit.nll <= budget for edit in kept.edits)
    assert [edit.nll for edit in kept.edits] == [
        float(sum(10 - token for token in kept.tokens_after(count))) for count in range(1, len(kept.edits) + 1)
    ]
    # By brute force: the best first edit within the budget.
    exact = exact_changes(energy, TOKENS)
    within = TOKENS[:, None] - torch.arange(VOCABULARY)[None, :] <= 1
    best = int(exact.masked_fill(~within, -math.inf).argmax())
    assert kept.edits[0].position * VOCABULARY + kept.edits[0].after == best
    with pytest.raises(ValueError, match="no nll came"):
        replace_tokens(energy, TOKENS, towards="fake", max_nll=1.0)
