"""Every path of a run: by hand, in batches, and what happens when a sampler breaks the rules."""

import itertools
import math

import pytest
import torch

from energylm.contracts import Choices
from energylm.testing import choices as choices_module
from energylm.testing import enumerate_paths, enumerate_rows


def logs(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_paths_by_hand():
    """A die of (0.2, 0.8); only after a 1 a coin of 0.25 is tossed: 0.2 + 0.8·0.75 + 0.8·0.25 = 1."""

    def run(choices: Choices):
        die = int(choices.categorical(logs([0.2, 0.8])))
        return die, bool(choices.accept(logs(0.25))) if die else None

    paths = enumerate_paths(run)
    assert [outcome for _, outcome in paths] == [(0, None), (1, False), (1, True)]
    assert [probability for probability, _ in paths] == pytest.approx([0.2, 0.6, 0.2])


def test_logits_need_no_normalising_and_the_impossible_is_not_walked():
    paths = enumerate_paths(
        lambda choices: int(choices.categorical(torch.tensor([[5.0, -math.inf, 5.0 + math.log(3)]])))
    )
    assert [outcome for _, outcome in paths] == [0, 2]
    assert [probability for probability, _ in paths] == pytest.approx([0.25, 0.75])
    assert enumerate_paths(lambda choices: bool(choices.accept(torch.tensor([3.0])))) == [(1.0, True)]
    assert enumerate_paths(lambda choices: bool(choices.accept(torch.tensor([-math.inf])))) == [(1.0, False)]
    assert enumerate_paths(lambda choices: "no decision at all") == [(1.0, "no decision at all")]


def test_several_decisions_a_row_and_several_rows_a_path():
    """Two rows, three positions, V = 2: 2⁶ paths, each with the product of its six probabilities."""
    probabilities = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    probabilities /= probabilities.sum(-1, keepdim=True)
    paths = enumerate_paths(lambda choices: choices.categorical(probabilities.log()))
    assert len(paths) == 64
    for (probability, outcome), bits in zip(paths, itertools.product(range(2), repeat=6), strict=True):
        assert outcome.shape == (2, 3) and outcome.flatten().tolist() == list(bits)
        assert probability == pytest.approx(float(probabilities.gather(-1, outcome[..., None]).prod()))


def step(choices: Choices, start_R):
    """Rows with different numbers of paths: a row moves by a draw that depends on where it starts."""
    offered = torch.stack([torch.arange(4) <= start for start in start_R]).double().log()
    moved_R = choices.categorical(offered)
    return torch.where(choices.accept(-moved_R.double()), moved_R, start_R).tolist()


def test_rows_together_equal_rows_apart():
    start_R = torch.tensor([3, 0, 2, 1])
    runs = 0

    def run(choices):
        nonlocal runs
        runs += 1
        return step(choices, start_R)

    together = enumerate_rows(run, rows=4)
    richest = 7  # 4 moves, each accepted or not, except moving to 0, which always is
    assert runs == richest + choices_module.INDEPENDENCE_RUNS
    for row, paths in enumerate(together):
        start_1 = start_R[row : row + 1]
        assert paths == [(p, outcome[0]) for p, outcome in enumerate_paths(lambda choices, s=start_1: step(choices, s))]
        assert math.isclose(sum(p for p, _ in paths), 1.0, abs_tol=1e-12)


def test_rows_that_lean_on_each_other_are_found_out():
    def offered_by_the_neighbour(choices):
        first_R = choices.categorical(torch.zeros(2, 2))
        return choices.categorical(torch.stack([first_R.roll(1), torch.zeros(2)], dim=1).double()).tolist()

    def decided_by_the_neighbour(choices):
        return choices.categorical(torch.zeros(2, 2)).roll(1).tolist()

    def stopped_by_the_neighbour(choices):
        tossed_R = choices.categorical(torch.zeros(2, 2))
        while not tossed_R.any():
            tossed_R = choices.categorical(torch.tensor([[-1.0, 3.0]] * 2)).clamp(min=1)
        return tossed_R.tolist()

    for run in (offered_by_the_neighbour, decided_by_the_neighbour, stopped_by_the_neighbour):
        with pytest.raises(AssertionError, match="depends on other rows"):
            enumerate_rows(run, rows=2)


def test_randomness_of_its_own_is_found_out():
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(AssertionError, match="randomness of its own"):
        enumerate_paths(lambda choices: [choices.accept(torch.rand(1, generator=generator).log()) for _ in range(3)])


def test_a_shorter_replay_is_found_out():
    runs = iter([3, 1])
    with pytest.raises(AssertionError, match="fewer decisions"):
        enumerate_paths(lambda choices: [choices.accept(logs(0.5)) for _ in range(next(runs))])


def test_endless_samplers_are_stopped(monkeypatch):
    monkeypatch.setattr(choices_module, "MAX_PATHS", 100)
    monkeypatch.setattr(choices_module, "MAX_DECISIONS", 50)

    def until_accepted(choices):
        while not choices.accept(logs(0.5)):
            pass

    with pytest.raises(ValueError, match="loop until accepted"):
        enumerate_paths(until_accepted)
    with pytest.raises(ValueError, match="more than 100 paths"):
        enumerate_paths(lambda choices: choices.categorical(torch.zeros(1, 7, 2)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda choices: choices.categorical(torch.tensor([[0.0, math.nan]])),
        lambda choices: choices.categorical(torch.full((1, 2), -math.inf)),
        lambda choices: choices.accept(torch.tensor([math.nan])),
    ],
)
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError):
        enumerate_paths(wrong)


def test_a_call_for_some_rows_only_is_refused():
    with pytest.raises(ValueError, match="all 3 rows, came 2"):
        enumerate_rows(lambda choices: choices.accept(torch.zeros(2)).tolist(), rows=3)
