"""Drawn decisions: the law that enumeration gives, numbers that belong to the row, and resuming."""

import math

import pytest
import torch

from energylm.contracts import Choices
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.testing import assert_same_distribution, enumerate_paths


def keys(rows, *, seed=0, first=0):
    return row_keys(seed, torch.arange(first, first + rows), torch.zeros(rows, dtype=torch.int64))


LOGITS_V = torch.tensor([0.0, 1.5, -math.inf, -1.0])


def run(choices: Choices, rows: int):
    """Two tokens and, if they differ, a coin: an outcome in 0 … 31 a row."""
    tokens_R2 = choices.categorical(LOGITS_V.expand(rows, 2, 4))
    kept_R = choices.accept(-tokens_R2[:, 0].double() / 2)
    return tokens_R2[:, 0] * 8 + tokens_R2[:, 1] * 2 + kept_R


def test_the_same_code_drawn_and_enumerated_has_the_same_law():
    exact = torch.zeros(32, dtype=torch.float64)
    for probability, outcome in enumerate_paths(lambda choices: run(choices, 1)):
        exact[outcome] += probability
    drawn = torch.bincount(run(RowChoices(keys(50_000)), 50_000), minlength=32)
    assert_same_distribution(drawn, exact)
    with pytest.raises(AssertionError):  # the mistake: using one number for all decisions of a row
        stuck = RowChoices(keys(50_000))
        numbers_R = stuck._uniforms(lambda: torch.ones(50_000, dtype=torch.bool))
        stuck._uniforms = lambda is_open: numbers_R
        assert_same_distribution(torch.bincount(run(stuck, 50_000), minlength=32), exact)


def test_a_row_decides_alike_in_any_batch():
    whole = run(RowChoices(keys(64)), 64)
    apart = torch.cat([run(RowChoices(keys(16, first=first)), 16) for first in range(0, 64, 16)])
    assert torch.equal(whole, apart)
    assert not torch.equal(whole, run(RowChoices(keys(64, seed=1)), 64))


def test_resuming_continues_the_numbers():
    whole = RowChoices(keys(32))
    run(whole, 32)
    assert whole.decided == 3
    assert torch.equal(run(whole, 32), run(RowChoices(keys(32), decided=3), 32))


def test_certain_and_impossible_things():
    choices = RowChoices(keys(10_000))
    assert choices.accept(torch.zeros(10_000)).all()
    assert not choices.accept(torch.full((10_000,), -math.inf)).any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda c: c.categorical(torch.tensor([[0.0, math.nan], [0.0, 0.0]])), "no finite maximum"),
        (lambda c: c.categorical(torch.full((2, 3), -math.inf)), "no finite maximum"),
        (lambda c: c.accept(torch.tensor([0.0, math.nan])), "NaN"),
        (lambda c: c.accept(torch.zeros(3)), "all 2 rows, came 3"),
        (lambda c: c.categorical(torch.zeros(1, 3)), "all 2 rows, came 1"),
    ],
)
def test_misuse_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong(RowChoices(keys(2)))
