"""Mask-Predict on tables: greedy by hand, the least confident hidden again, ever fewer; beams of lengths."""

import pytest
import torch
from torch import Tensor

from energylm.samplers.mask_predict import MaskPredict, best_of_length_beam
from energylm.testing import TabularMaskedModel

V, T = 4, 5
MODEL = TabularMaskedModel.random(V, T, seed=1)
ALL_V = torch.ones(V, dtype=torch.bool)
TOKENS_1T, LENGTH_1, FREE_1T = torch.zeros(1, T, dtype=torch.int64), torch.tensor([T]), torch.ones(1, T).bool()


def greedy(tokens_T: Tensor, hidden: list[int]) -> tuple[Tensor, Tensor]:
    """New tokens and log-probabilities at the hidden positions, read from the table one by one."""
    read = [V if place in hidden else int(tokens_T[place]) for place in range(T)]
    code = sum(symbol * (V + 1) ** (T - 1 - place) for place, symbol in enumerate(read))
    return torch.stack([MODEL.table[0, place, code].log_softmax(0) for place in hidden]).max(-1)[::-1]


def test_iterations_by_hand() -> None:
    """Five positions, five iterations: 5, then the 4, 3, 2, 1 least confident."""
    sampler = MaskPredict(MODEL, ALL_V, iterations=5)
    tokens_T, log_prob_T = torch.zeros(T, dtype=torch.int64), torch.zeros(T, dtype=torch.float64)
    hidden = list(range(T))
    state = sampler.init(TOKENS_1T, LENGTH_1, free_RT=FREE_1T)
    for count in (4, 3, 2, 1, 0):
        tokens_T[hidden], log_prob_T[hidden] = greedy(tokens_T, hidden)
        assert state.tokens_RT[0].tolist() == tokens_T.tolist()
        torch.testing.assert_close(state.log_prob_RT[0], log_prob_T)
        hidden = sorted(log_prob_T.argsort(stable=True)[:count].tolist())
        if count:
            state = sampler.step(state)
    done = sampler.run(TOKENS_1T, LENGTH_1, free_RT=FREE_1T)
    assert done.iteration == 5 and done.tokens_RT.tolist() == state.tokens_RT.tolist()
    assert float(done.score_R) == pytest.approx(float(log_prob_T.mean()))


def test_fixed_positions_and_forbidden_tokens_are_respected() -> None:
    free_1T = torch.tensor([[True, False, True, False, True]])
    allowed_V = torch.tensor([True, True, False, True])
    state = MaskPredict(MODEL, allowed_V, iterations=4).run(torch.full((1, T), 2), LENGTH_1, free_RT=free_1T)
    assert (state.tokens_RT[~free_1T] == 2).all() and (state.tokens_RT[free_1T] != 2).all()
    assert (state.log_prob_RT[~free_1T] == 0).all()


def test_a_length_beam_keeps_the_length_of_highest_mean_log_probability() -> None:
    lengths_R = torch.tensor([2, 3, 4, 5, 3])
    group_R = torch.tensor([0, 0, 0, 1, 1])
    tokens_RT = torch.zeros(5, T, dtype=torch.int64)
    free_RT = torch.arange(T) < lengths_R[:, None]
    state = MaskPredict(MODEL, ALL_V).run(tokens_RT, lengths_R, free_RT=free_RT)
    best = best_of_length_beam(state, group_R)
    means = [state.log_prob_RT[row, :length].mean().item() for row, length in enumerate(lengths_R.tolist())]
    assert best.tolist() == [max(range(3), key=lambda row: means[row]), max((3, 4), key=lambda row: means[row])]
    alone = MaskPredict(MODEL, ALL_V).run(tokens_RT[1:2, :3], lengths_R[1:2], free_RT=free_RT[1:2, :3])
    assert alone.tokens_RT[0].tolist() == state.tokens_RT[1, :3].tolist()  # rows of a beam do not see each other
