"""Objectives of the exact studies: by hand, by enumeration, and what their minimisers are.

The language has V = 3 symbols and sequences of T = 3, so that every expectation is a sum over 27 sequences.
"""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.objectives.sequence_likelihood import log_conditionals, projection_kl, pseudo_nll, sequence_nll
from energylm.testing import TabularMaskedModel, enumerate_sequences, index_of

V, T = 3, 3
STATES = enumerate_sequences(V, T)
LENGTHS = torch.full((len(STATES),), T)
MODEL = TabularMaskedModel.random(V, T, seed=1)
DATA = torch.randn(V**T, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).softmax(0)


def variant_index() -> Tensor:
    """(S, T, V) the number of each sequence with its token at t replaced by w."""
    index_STV = torch.empty(len(STATES), T, V, dtype=torch.int64)
    for number, y in enumerate(STATES):
        for t, w in product(range(T), range(V)):
            variant = y.clone()
            variant[t] = w
            index_STV[number, t, w] = index_of(variant[None], STATES)
    return index_STV


VARIANTS = variant_index()


def replaced(energy_S: Tensor) -> Tensor:
    """(S, T, V) from a table of the energies of all sequences."""
    return energy_S[VARIANTS]


def table_logits(sequences_BT: Tensor, *, hide: bool = True) -> Tensor:
    """(B, T, V) logits of the tabular masked model at each position, the token there hidden, or by mistake not."""
    rows = []
    for t in range(T):
        read_BT = sequences_BT.clone()
        if hide:
            read_BT[:, t] = V
        place_T = (V + 1) ** torch.arange(T - 1, -1, -1)
        rows.append(MODEL.table[0, t, (read_BT * place_T).sum(1)])
    return torch.stack(rows, dim=1)


def minimised(loss_of, start: Tensor) -> Tensor:
    values = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [values], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(values)
        loss.backward()
        return loss

    optimiser.step(closure)
    return values.detach()


def test_likelihood_by_hand() -> None:
    """Two sequences with energies 0 and log 3: Z = 1 + 1/3 = 4/3, so p = 3/4 and 1/4."""
    energy_2 = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
    log_partition = (-energy_2).logsumexp(0)
    torch.testing.assert_close((-sequence_nll(energy_2, log_partition)).exp(), torch.tensor([0.75, 0.25]).double())
    forgotten = (-sequence_nll(energy_2, torch.zeros(()))).exp()
    assert abs(float(forgotten.sum()) - 1) > 0.3, "without log Z these are no probabilities"


def test_pseudo_likelihood_by_hand() -> None:
    """Two binary tokens, E = 0 where they agree and log 9 where they do not: each given the other is right with 9/10.

    The sum over both positions of the agreeing pair is −2 log 0.9, of the other −2 log 0.1.
    """
    nine = math.log(9)
    agree = [[0.0, nine], [0.0, nine]]  # (0, 0): the first token as 0, 1; then the second
    differ = [[nine, 0.0], [0.0, nine]]  # (0, 1)
    found_2 = pseudo_nll(torch.tensor([agree, differ], dtype=torch.float64), torch.tensor([[0, 0], [0, 1]]))
    torch.testing.assert_close(found_2, torch.tensor([-2 * math.log(0.9), -2 * math.log(0.1)], dtype=torch.float64))


def test_conditionals_are_those_of_the_joint() -> None:
    """p(y_t | y_∖t) = p(y) / Σ_w p(y with w at t), for the joint exp(−E_raw)/Z of a masked model."""
    energy_S = MaskedLMEnergy(MODEL, kind="raw").energies(STATES, LENGTHS)
    joint_S = (-energy_S).softmax(0)
    found_STV = log_conditionals(replaced(energy_S)).exp()
    for number, y in enumerate(STATES):
        for t in range(T):
            others = [i for i in range(T) if i != t]
            same_S = (STATES[:, others] == y[others]).all(1)
            expected_V = joint_S[same_S] / joint_S[same_S].sum()
            torch.testing.assert_close(found_STV[number, t], expected_V)
    free_STV = table_logits(STATES).softmax(-1)
    assert (found_STV - free_STV).abs().max() > 0.1, "the masked model's own conditionals are not those of its energy"


def test_the_masked_objective_hides_the_token() -> None:
    """− Σ_t log softmax(logits with t hidden)[y_t], by a loop; a model that sees the token has another loss."""
    expected_S = []
    for y in STATES:
        total = 0.0
        for t in range(T):
            code = sum((V if i == t else int(y[i])) * (V + 1) ** (T - 1 - i) for i in range(T))
            total -= float(MODEL.table[0, t, code].log_softmax(0)[y[t]])
        expected_S.append(total)
    expected_S = torch.tensor(expected_S, dtype=torch.float64)
    torch.testing.assert_close(pseudo_nll(-table_logits(STATES), STATES), expected_S)
    assert not torch.allclose(pseudo_nll(-table_logits(STATES, hide=False), STATES), expected_S)
    assert not torch.allclose(pseudo_nll(table_logits(STATES), STATES), expected_S), "logits are minus energies"


def test_projection_by_hand() -> None:
    """Teacher (1/2, 1/2), student (3/4, 1/4): KL = ½ log(½ / ¾) + ½ log(½ / ¼) = ½ log(4/3); swapped it is
    ¾ log(3/2) + ¼ log(1/2)."""
    teacher_112 = torch.zeros(1, 1, 2, dtype=torch.float64)
    student_112 = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64)
    assert projection_kl(teacher_112, student_112).item() == pytest.approx(0.5 * math.log(4 / 3))
    swapped = projection_kl(-student_112, -teacher_112).item()
    assert swapped == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert abs(swapped - 0.5 * math.log(4 / 3)) > 0.01


def test_projection_reaches_the_student_only() -> None:
    teacher_STV = table_logits(STATES).requires_grad_()
    energy_S = torch.zeros(V**T, dtype=torch.float64, requires_grad=True)
    projection_kl(teacher_STV, replaced(energy_S)).sum().backward()
    assert teacher_STV.grad is None and energy_S.grad is not None and energy_S.grad.abs().max() > 0


def test_a_certain_teacher_is_pseudo_likelihood() -> None:
    certain_STV = 1e4 * torch.nn.functional.one_hot(STATES, V).double()
    replaced_STV = replaced(-DATA.log())
    torch.testing.assert_close(projection_kl(certain_STV, replaced_STV), pseudo_nll(replaced_STV, STATES))


def likelihood_loss(energy_S: Tensor) -> Tensor:
    return DATA @ sequence_nll(energy_S, (-energy_S).logsumexp(0))


def pseudo_loss(energy_S: Tensor) -> Tensor:
    return DATA @ pseudo_nll(replaced(energy_S), STATES)


def projection_loss(energy_S: Tensor) -> Tensor:
    return DATA @ projection_kl(-replaced(-DATA.log()), replaced(energy_S))


def test_projection_where_either_model_rules_a_token_out() -> None:
    """Teacher (1/2, 1/2, 0), student (1/4, 3/4, 0) or (1/4, 1/2, 1/4):   ½ log(½/¼) + ½ log(½/¾), and ½ log 2.
    The gradient in the student's energies is teacher − student. A student that rules out the first token: +inf."""
    inf = float("inf")
    teacher_113 = torch.tensor([[[0.0, 0.0, -inf]]], dtype=torch.float64)
    for student, by_hand in (
        ([0.25, 0.75, 0.0], 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
        ([0.25, 0.50, 0.25], 0.5 * math.log(2)),
    ):
        student_113 = torch.tensor([[student]], dtype=torch.float64)
        energy_113 = (-student_113.log()).requires_grad_()
        loss_1 = projection_kl(teacher_113, energy_113)
        loss_1.backward()
        assert loss_1.item() == pytest.approx(by_hand, abs=1e-15)
        torch.testing.assert_close(energy_113.grad, torch.tensor([[[0.5, 0.5, 0.0]]]).double() - student_113)
    rules_out_113 = torch.tensor([[[inf, 0.0, 0.0]]], dtype=torch.float64)
    assert projection_kl(teacher_113, rules_out_113).item() == inf
    # A teacher's probability that underflows is a zero, too, although its logarithm is finite.
    tiny_113 = torch.tensor([[[0.0, 0.0, -1e5]]], dtype=torch.float64)
    assert projection_kl(tiny_113, torch.tensor([[[0.0, 0.0, inf]]]).double()).item() == pytest.approx(0, abs=1e-12)
    # Teeth: the plain sum has 0 · (−inf) in it.
    log_teacher_113 = teacher_113.log_softmax(-1)
    assert (log_teacher_113.exp() * (log_teacher_113 - log_conditionals(energy_113))).sum().isnan()


@pytest.mark.parametrize("loss", [likelihood_loss, pseudo_loss, projection_loss])
def test_consistent_objectives_recover_the_data(loss) -> None:
    found_S = minimised(loss, torch.zeros(V**T, dtype=torch.float64))
    torch.testing.assert_close((-found_S).softmax(0), DATA, atol=1e-5, rtol=0)


def test_without_log_partition_the_data_are_not_recovered() -> None:
    """Σ p(y) E(y) has the gradient p(y) everywhere: it is no minimum at the data, nor anywhere."""
    energy_S = (-DATA.log()).requires_grad_()
    (right_S,) = torch.autograd.grad(likelihood_loss(energy_S), energy_S)
    (wrong_S,) = torch.autograd.grad(DATA @ sequence_nll(energy_S, torch.zeros(())), energy_S)
    assert right_S.abs().max() < 1e-12 < 1e-3 < wrong_S.abs().max()


def test_the_masked_objective_recovers_conditionals_but_not_the_joint() -> None:
    """Free logits for every context reach the data's conditionals; E_raw, the sum of those logits, is another joint:
    with log-probabilities as logits it is Σ_t −log p(y_t | y_∖t), not −log p(y)."""
    contexts = [index_of(_without(t), enumerate_sequences(V, T - 1)) for t in range(T)]

    def logits(table_TCV: Tensor) -> Tensor:
        return torch.stack([table_TCV[t][contexts[t]] for t in range(T)], dim=1)

    start = torch.zeros(T, V ** (T - 1), V, dtype=torch.float64)
    table_TCV = minimised(lambda table: DATA @ pseudo_nll(-logits(table), STATES), start)
    true_STV = log_conditionals(replaced(-DATA.log()))
    torch.testing.assert_close(logits(table_TCV).softmax(-1), true_STV.exp(), atol=1e-5, rtol=0)
    energy_S = -logits(table_TCV).gather(2, STATES[..., None])[..., 0].sum(1)
    divergence = float(DATA @ (DATA.log() - (-energy_S).log_softmax(0)))
    assert divergence > 0.05


def _without(t: int) -> Tensor:
    return torch.cat([STATES[:, :t], STATES[:, t + 1 :]], dim=1)


def test_inconsistent_conditionals_have_no_joint() -> None:
    """p(y1 | y2) = 0.99 on the diagonal, p(y2 | y1) = 1/2 (Goyal 2021, §6.2.1).

    A joint with these conditionals would have p(a,a)/p(b,a) = 99 and p(a,b)/p(b,b) = 1/99 from the first, and ratios of
    one along each row from the second: p(a,a) = p(a,b) = p(b,b)/99 = p(b,a)/99 = p(a,a)/99². So the projection onto a
    joint stays above zero, and where it ends depends on the direction of the divergence.
    """
    first_given_second = torch.tensor([[0.99, 0.01], [0.01, 0.99]]).double()  # [y2, y1]
    pairs_4 = list(product(range(2), repeat=2))
    teacher_422 = torch.stack(
        [torch.stack([first_given_second[b], torch.tensor([0.5, 0.5]).double()]) for _, b in pairs_4]
    ).log()

    def replaced_pairs(energy_4: Tensor) -> Tensor:
        table = energy_4.view(2, 2)
        return torch.stack([torch.stack([table[:, b], table[a]]) for a, b in pairs_4])

    def forward(energy_4: Tensor) -> Tensor:
        return projection_kl(teacher_422, replaced_pairs(energy_4)).mean()

    def swapped(energy_4: Tensor) -> Tensor:
        student_422 = log_conditionals(replaced_pairs(energy_4))
        return (student_422.exp() * (student_422 - teacher_422)).sum((1, 2)).mean()

    start = torch.zeros(4, dtype=torch.float64)
    best, other = minimised(forward, start), minimised(swapped, start + 1e-3 * torch.arange(4))
    assert float(forward(best)) > 0.1
    assert ((-best).softmax(0) - (-other).softmax(0)).abs().max() > 0.02
    consistent_422 = log_conditionals(replaced_pairs(torch.tensor([0.0, 1.0, 2.0, 0.5]).double()))
    reached = minimised(lambda energy: projection_kl(consistent_422, replaced_pairs(energy)).mean(), start)
    assert float(projection_kl(consistent_422, replaced_pairs(reached)).mean()) < 1e-9
