"""The scheduled-sampling family on random models: its corners are known functions, its gradients reach the source.

(Here and not with the objectives, because the random models live beside the searches.)
"""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from energylm.objectives.cross_entropy import cross_entropy_sum
from energylm.objectives.scheduled_sampling import (
    gumbel_of_rows,
    inverse_sigmoid,
    scheduled_sampling_scores,
    taught,
)
from energylm.search.beam import greedy_search

SHARP = 1e6
BATCH, LENGTH, VOCABULARY = 3, 5, 4


@pytest.fixture
def setting(toy):
    model = toy.network(vocabulary=VOCABULARY, attention="learned", seed=2)
    source_BS, lengths_B = toy.sources(LENGTH, 2, 4)
    gold_BT = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    return model, source_BS, lengths_B, gold_BT


def never(gold_BT):
    return torch.zeros_like(gold_BT, dtype=torch.bool)


def test_always_taught_is_teacher_forcing(setting):
    """A second route: the fused pass. Relaxation and noise have nothing to act on."""
    model, source_BS, lengths_B, gold_BT = setting
    fused = model.scores(source_BS, lengths_B, gold_BT)
    for options in ({}, {"alpha": 2.0}, {"alpha": 2.0, "noise": gumbel_of_rows(torch.arange(BATCH))}):
        stepped = scheduled_sampling_scores(model.stepper(source_BS, lengths_B), gold_BT, ~never(gold_BT), **options)
        assert_close(stepped, fused)


def test_never_taught_follows_greedy_search(setting):
    """The hard predictions are those of greedy decoding; the scores are those of teacher forcing along that path."""
    model, source_BS, lengths_B, gold_BT = setting
    full_B = torch.full((BATCH,), LENGTH)
    stepped = scheduled_sampling_scores(model.stepper(source_BS, lengths_B), gold_BT, never(gold_BT))
    path_BT, _ = greedy_search(model.stepper(source_BS, lengths_B), lengths_B=full_B)
    assert torch.equal(stepped.argmax(-1), path_BT)
    assert_close(stepped, model.scores(source_BS, lengths_B, path_BT))
    assert not torch.allclose(stepped, model.scores(source_BS, lengths_B, gold_BT))  # teeth


@pytest.mark.parametrize("sampled", [False, True])
def test_soft_predictions_meet_the_hard_ones(setting, sampled):
    model, source_BS, lengths_B, gold_BT = setting
    noise = gumbel_of_rows(torch.tensor([11, 12, 13])) if sampled else None
    given_BT = taught(torch.tensor([5, 6, 7]), share=0.5, length=LENGTH)
    hard, soft, smooth = (
        scheduled_sampling_scores(model.stepper(source_BS, lengths_B), gold_BT, given_BT, alpha=alpha, noise=noise)
        for alpha in (None, SHARP, 1.0)
    )
    assert_close(soft, hard)
    assert not torch.allclose(smooth, hard)


def test_noise_changes_the_path_and_depends_on_the_row_alone(setting):
    model, source_BS, lengths_B, gold_BT = setting
    keys_B = torch.tensor([11, 12, 13])
    greedy, sampled = (
        scheduled_sampling_scores(model.stepper(source_BS, lengths_B), gold_BT, never(gold_BT), noise=noise)
        for noise in (None, gumbel_of_rows(keys_B))
    )
    assert not torch.allclose(greedy, sampled)
    alone = scheduled_sampling_scores(
        model.stepper(source_BS[2:, :4], lengths_B[2:]),
        gold_BT[2:],
        never(gold_BT[2:]),
        noise=gumbel_of_rows(keys_B[2:]),
    )
    assert_close(alone[0], sampled[2])


def test_a_relaxed_prediction_gives_credit_to_earlier_steps(setting):
    """The gradient of the last step's loss with respect to the first step's scores: zero through argmax."""
    model, source_BS, lengths_B, gold_BT = setting
    reached = {}
    for alpha in (None, 1.0):
        stepper = model.stepper(source_BS, lengths_B)
        first: list[torch.Tensor] = []

        class Watched:
            embedding_VE, start = stepper.embedding_VE, stepper.start

            def step(self, state, inputs_BKE, *, position, stepper=stepper, first=first):
                # The state is cut off: only what is fed back can carry a gradient.
                state, scores = stepper.step(tuple(s.detach() for s in state), inputs_BKE, position=position)
                if position == 0:
                    scores.retain_grad()
                    first.append(scores)
                return state, scores

        scores = scheduled_sampling_scores(Watched(), gold_BT, never(gold_BT), alpha=alpha)
        F.cross_entropy(scores[:, 1], gold_BT[:, 1]).backward()
        reached[alpha] = 0.0 if first[0].grad is None else float(first[0].grad.abs().max())
    assert reached[None] == 0 and reached[1.0] > 1e-4


@pytest.mark.parametrize("sampled", [False, True])
def test_gradients_of_the_relaxed_objective_by_finite_differences(setting, sampled):
    model, source_BS, lengths_B, gold_BT = setting
    noise = gumbel_of_rows(torch.tensor([1, 2, 3])) if sampled else None
    given_BT = taught(torch.tensor([5, 6, 7]), share=0.3, length=LENGTH)

    def loss():
        stepper = model.stepper(source_BS, lengths_B)
        return cross_entropy_sum(scheduled_sampling_scores(stepper, gold_BT, given_BT, alpha=0.9, noise=noise), gold_BT)

    weight = model.output.weight
    (gradient,) = torch.autograd.grad(loss(), weight)
    direction = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(1))
    values = []
    with torch.no_grad():
        for by in (1e-6, -2e-6):
            weight.add_(direction, alpha=by)
            values.append(float(loss()))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-5)


def test_the_objective_jumps_where_a_prediction_changes_unless_it_is_relaxed(setting):
    """Figure 3.1: along a line the hard objective jumps where a prediction changes, the soft one does not."""
    model, source_BS, lengths_B, gold_BT = setting
    weight, start = model.output.weight, model.output.weight.detach().clone()
    direction = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(2))

    @torch.no_grad()
    def values(points, alpha):
        found = []
        for t in points:
            weight.copy_(start + t * direction)
            stepper = model.stepper(source_BS, lengths_B)
            scores = scheduled_sampling_scores(stepper, gold_BT, never(gold_BT), alpha=alpha)
            found.append(cross_entropy_sum(scores, gold_BT))
        weight.copy_(start)
        return torch.stack(found)

    points = torch.linspace(-1, 1, 201, dtype=torch.float64)
    jumps = {alpha: float(values(points, alpha).diff().abs().max()) for alpha in (None, 1.0)}
    assert jumps[None] > 0.3 and jumps[1.0] < 0.05


def test_inverse_sigmoid_by_hand():
    """k = 1 in epoch 1: 1 / (1 + e); larger k falls later; the first epoch is taught."""
    assert inverse_sigmoid(0, strength=1.0) == 1.0
    assert inverse_sigmoid(1, strength=1.0) == pytest.approx(1 / (1 + 2.718281828459045))
    assert inverse_sigmoid(10, strength=10.0) == pytest.approx(10 / (10 + 2.718281828459045))
    assert inverse_sigmoid(5, strength=100) > inverse_sigmoid(5, strength=10) > inverse_sigmoid(5, strength=1)
    assert inverse_sigmoid(1e6, strength=1.0) == 0.0


def test_the_share_of_taught_positions():
    """20,000 coins of 0.3: five standard deviations are 0.0162 (false alarm 6e-7)."""
    share = taught(torch.arange(1000), share=0.3, length=20).double().mean()
    assert abs(float(share) - 0.3) < 0.0162
    assert (
        taught(torch.arange(10), share=1.0, length=4).all() and not taught(torch.arange(10), share=0.0, length=4).any()
    )
