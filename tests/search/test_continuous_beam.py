"""Soft beam search: equal to the hard one in the limit, differentiable before it; deliberate mistakes are caught."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from energylm.errors import ConfigError
from energylm.numerics.relaxations import continuous_top_k
from energylm.search import continuous_beam
from energylm.search.beam import beam_search
from energylm.search.continuous_beam import continuous_beam_search

SHARP = 1e10  # soft equals hard where α·gap² ≫ 1, and random models have gaps down to 1e-4
SETTINGS = [
    ("fixed", None, True),
    ("fixed", None, False),
    ("learned", None, True),
    ("learned", 0, True),
    ("learned", 0, False),
]


def hamming(gold_BT, vocabulary):
    return lambda t: 1.0 - torch.nn.functional.one_hot(gold_BT[:, t], vocabulary).double()


def gold(lengths_B, vocabulary, seed=5):
    shape = (len(lengths_B), int(lengths_B.max()))
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def hard_costs(beam, gold_BT, lengths_B):
    """(B, K) Hamming distance of each sequence of a hard beam, past its EOS too, within the row's length."""
    inside_BT = torch.arange(gold_BT.shape[1]) < lengths_B[:, None]
    return ((beam.tokens_BKT != gold_BT[:, None]) & inside_BT[:, None]).sum(-1).double()


def searches(toy, attention, eos, normalized, *, seed, beam=3, alpha=SHARP):
    model = toy.network(vocabulary=5, attention=attention, eos=eos, seed=seed)
    source_BS, lengths_B = toy.sources(5, 1, 3, 4, seed=seed)
    gold_BT = gold(lengths_B, 5)
    options = {"beam": beam, "lengths_B": lengths_B, "eos_token_id": eos, "locally_normalized": normalized}
    with torch.no_grad():
        hard = beam_search(model.stepper(source_BS, lengths_B), **options)
        soft = continuous_beam_search(
            model.stepper(source_BS, lengths_B), alpha=alpha, costs=hamming(gold_BT, 5), **options
        )
    return hard, soft, gold_BT, lengths_B


@pytest.mark.parametrize(("attention", "eos", "normalized"), SETTINGS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_limit_is_hard_beam_search(toy, attention, eos, normalized, seed):
    """Scores, back-pointers, symbols and costs of all three elements; the random models have no ties."""
    hard, soft, gold_BT, lengths_B = searches(toy, attention, eos, normalized, seed=seed)
    order_BK = soft.scores_BK.argsort(1, descending=True)
    assert_close(soft.scores_BK.gather(1, order_BK), hard.scores_BK, atol=1e-7, rtol=0)
    assert_close(soft.costs_BK.gather(1, order_BK), hard_costs(hard, gold_BT, lengths_B), atol=1e-6, rtol=0)
    tokens_BT, ends_B = soft.decode(lengths_B=lengths_B, eos_token_id=eos)
    assert torch.equal(tokens_BT, hard.tokens_BKT[:, 0]) and torch.equal(ends_B, hard.lengths_BK[:, 0])
    for t in range(hard.parents_BTK.shape[1]):
        writing_B = (t < lengths_B) & hard.scores_BK.isfinite().all(1)
        assert torch.equal(soft.parents_BTK[writing_B, t], hard.parents_BTK[writing_B, t])
        assert torch.equal(soft.choices_BTK[writing_B, t], hard.choices_BTK[writing_B, t])
        soft_BK = soft.soft_parents[t][writing_B]
        one_hot = torch.nn.functional.one_hot(soft.parents_BTK[writing_B, t], soft_BK.shape[-1]).double()
        assert_close(soft_BK, one_hot, atol=1e-6, rtol=0)


def test_float32_at_an_alpha_of_ten_thousand(toy):
    """Widely spread scores (its gaps are large enough), so that 1e4 is sharp; gradients stay finite."""
    model = toy.network(vocabulary=5, attention="learned", eos=0, seed=1, spread=6.0, dtype=torch.float32)
    source_BS, lengths_B = toy.sources(5, 1, 3, 4)
    options = {"beam": 3, "lengths_B": lengths_B, "eos_token_id": 0}
    with torch.no_grad():
        hard = beam_search(model.stepper(source_BS, lengths_B), **options)
    soft = continuous_beam_search(model.stepper(source_BS, lengths_B), alpha=1e4, **options)
    assert_close(soft.scores_BK.detach().sort(1, descending=True).values, hard.scores_BK, atol=1e-3, rtol=0)
    soft.scores_BK.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("attention", "eos", "normalized"), SETTINGS)
def test_a_smooth_search_is_another_one(toy, attention, eos, normalized):
    """Teeth: the equality above comes from α, not from a soft search that secretly is hard."""
    hard, soft, *_ = searches(toy, attention, eos, normalized, seed=0, alpha=0.3)
    assert float((soft.scores_BK.max(1).values - hard.scores_BK[:, 0]).abs().max()) > 1e-3


@pytest.mark.parametrize(("attention", "eos", "normalized"), SETTINGS)
@pytest.mark.parametrize("augmented", [False, True])
def test_gradients_by_finite_differences(toy, attention, eos, normalized, augmented):
    """A loss of scores and costs, along a random direction of all weights at once; α small enough to be smooth."""
    model = toy.network(vocabulary=4, attention=attention, eos=eos, seed=3, spread=0.7)
    source_BS, lengths_B = toy.sources(3, 1, 2, seed=4)
    costs = hamming(gold(lengths_B, 4), 4)

    def loss():
        soft = continuous_beam_search(
            model.stepper(source_BS, lengths_B),
            beam=3,
            alpha=0.8,
            lengths_B=lengths_B,
            eos_token_id=eos,
            locally_normalized=normalized,
            costs=costs,
            augmented=augmented,
        )
        return ((0.8 * soft.scores_BK).softmax(1) * soft.costs_BK).sum() + (
            soft.scores_BK * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
        ).sum()

    loss().backward()
    generator = torch.Generator().manual_seed(6)
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in model.parameters()]
    slope = sum(
        float((p.grad * d).sum()) for p, d in zip(model.parameters(), direction, strict=True) if p.grad is not None
    )

    def moved(by):
        with torch.no_grad():
            for parameter, d in zip(model.parameters(), direction, strict=True):
                parameter.add_(d, alpha=by)
            value = float(loss())
            for parameter, d in zip(model.parameters(), direction, strict=True):
                parameter.sub_(d, alpha=by)
        return value

    step = 1e-6
    assert (moved(step) - moved(-step)) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    assert abs(slope) > 1e-2  # a zero would prove nothing


def test_rows_do_not_feel_the_padding_of_others(toy):
    model = toy.network(vocabulary=5, attention="learned", eos=0)
    source_BS, lengths_B = toy.sources(5, 2, 3)
    costs = gold(lengths_B, 5)
    with torch.no_grad():
        together = continuous_beam_search(
            model.stepper(source_BS, lengths_B),
            beam=3,
            alpha=0.5,
            lengths_B=lengths_B,
            eos_token_id=0,
            costs=hamming(costs, 5),
        )
        for row, length in enumerate(lengths_B.tolist()):
            alone_B = lengths_B[row : row + 1]
            alone = continuous_beam_search(
                model.stepper(source_BS[row : row + 1, :length], alone_B),
                beam=3,
                alpha=0.5,
                lengths_B=alone_B,
                eos_token_id=0,
                costs=hamming(costs[row : row + 1], 5),
            )
            assert_close(alone.scores_BK[0], together.scores_BK[row])
            assert_close(alone.costs_BK[0], together.costs_BK[row])


def test_the_cost_augmented_search_adds_the_cost_to_the_score(toy):
    """In the limit an augmented score is the plain score of its sequence plus its Hamming distance."""
    model = toy.network(vocabulary=4, attention="fixed", seed=1)
    source_BS, lengths_B = toy.sources(3)
    gold_BT = gold(lengths_B, 4)
    with torch.no_grad():
        soft = continuous_beam_search(
            model.stepper(source_BS, lengths_B),
            beam=4,
            alpha=SHARP,
            lengths_B=lengths_B,
            costs=hamming(gold_BT, 4),
            augmented=True,
        )
    tokens_BT, _ = soft.decode(lengths_B=lengths_B)
    plain = toy.exact_scores(model, source_BS[0], tokens_BT[0].tolist())
    distance = int((tokens_BT != gold_BT).sum())
    assert float(soft.scores_BK.max()) == pytest.approx(plain + distance, abs=1e-6)
    best = max(
        toy.exact_scores(model, source_BS[0], each)
        + sum(a != b for a, b in zip(each, gold_BT[0].tolist(), strict=True))
        for each in toy.sequences(4, 3)
    )
    assert float(soft.scores_BK.max()) <= best + 1e-6


@pytest.mark.parametrize("mistake", ["column sum for row sum", "loss not carried"])
def test_deliberate_mistakes_are_caught(toy, monkeypatch, mistake):
    """The comparison with the hard beam above is what catches them. V = K here, so that the shapes would fit."""
    model = toy.network(vocabulary=3, attention="fixed", seed=2)
    source_BS, lengths_B = toy.sources(5, 4, 5, 5, seed=3)
    gold_BT = gold(lengths_B, 3)
    options = {"beam": 3, "lengths_B": lengths_B}

    def agrees():
        with torch.no_grad():
            hard = beam_search(model.stepper(source_BS, lengths_B), **options)
            soft = continuous_beam_search(
                model.stepper(source_BS, lengths_B), alpha=SHARP, costs=hamming(gold_BT, 3), **options
            )
        order_BK = soft.scores_BK.argsort(1, descending=True)
        costs_BK = soft.costs_BK.gather(1, order_BK)
        return bool(
            torch.allclose(soft.scores_BK.gather(1, order_BK), hard.scores_BK, atol=1e-6)
            and torch.allclose(costs_BK, hard_costs(hard, gold_BT, lengths_B), atol=1e-6)
        )

    assert agrees()

    def mistaken(scores_BJV, *, k, alpha):
        top = continuous_top_k(scores_BJV, k=k, alpha=alpha)
        if scores_BJV.shape[1] == 1:
            return top
        return dataclasses.replace(top, back_BKJ=top.symbol_BKV, symbol_BKV=top.back_BKJ)

    if mistake == "column sum for row sum":
        monkeypatch.setattr(continuous_beam, "continuous_top_k", mistaken)
    else:
        monkeypatch.setattr(continuous_beam, "carried", lambda back_BKJ, cost_BJ: torch.zeros_like(back_BKJ[..., 0]))
    assert not agrees()


def test_a_beam_wider_than_the_first_step_is_refused(toy):
    model = toy.network(vocabulary=3)
    source_BS, lengths_B = toy.sources(2)
    with pytest.raises(ConfigError, match="a soft beam of 4 is wider than its first step allows: there are 3 symbols"):
        continuous_beam_search(model.stepper(source_BS, lengths_B), beam=4, alpha=1.0, lengths_B=lengths_B)
    with pytest.raises(ConfigError, match=r"α came as 0\.0"):
        continuous_beam_search(model.stepper(source_BS, lengths_B), beam=3, alpha=0.0, lengths_B=lengths_B)
