"""Every random path of a sampler, with its probability: the sampler's own code, run once for each course it can take.

    P(outcome) = Σ_{paths to it} Π_d P(decision d | path so far)

A sampler that takes its decisions from `contracts.Choices` is run again and again until its tree of decisions has been
walked to every leaf. Decisions of probability zero are not walked. Nothing is drawn, so the answer is exact.

Use it     on the real `step` of a sampler, on a language small enough that its paths can be counted in thousands.
Relations  `transitions` builds the transition matrix of a chain from it; `samplers.choices.RowChoices` draws instead.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import TypeVar

import torch
from torch import Tensor

from energylm.contracts import Choices

Outcome = TypeVar("Outcome")

MAX_PATHS = 1_000_000
MAX_DECISIONS = 10_000
REPLAY_TOLERANCE = 1e-6  # float32 networks repeat their own numbers at least this well
INDEPENDENCE_RUNS = 20
WHEN_REPEATED = (
    "when the same path was walked again: the sampler depends on other rows, on a state that it changed in place, "
    "or on randomness of its own"
)


@dataclass
class Path:
    """One course through a tree of decisions."""

    offered: list[list[float]] = field(default_factory=list)  # the probabilities met at each decision
    taken: list[int] = field(default_factory=list)

    @property
    def probability(self) -> float:
        return math.prod(offered[taken] for offered, taken in zip(self.offered, self.taken, strict=True))

    def copy(self) -> "Path":
        return Path(list(self.offered), list(self.taken))


class DecisionTree:
    """A walk through one tree of decisions, leaf by leaf. Each run replays the path to the branch it changes."""

    def __init__(self) -> None:
        self.path = Path()
        self.finished = False
        self._depth = 0

    def decide(self, probabilities: list[float]) -> int:
        offered, taken = self.path.offered, self.path.taken
        if self._depth == len(taken):
            if self._depth >= MAX_DECISIONS:
                raise ValueError(f"a path took {MAX_DECISIONS:,} decisions; does the sampler loop until accepted?")
            offered.append(probabilities)
            taken.append(_next_possible(probabilities, 0))
        before = offered[self._depth]
        if len(before) != len(probabilities) or max(map(abs, map(sub, before, probabilities))) > REPLAY_TOLERANCE:
            raise AssertionError(f"decision {self._depth} was offered other probabilities {WHEN_REPEATED}")
        self._depth += 1
        return taken[self._depth - 1]

    def end_run(self) -> None:
        if self._depth != len(self.path.taken):
            raise AssertionError(f"fewer decisions were taken {WHEN_REPEATED}")
        self._depth = 0

    def advance(self) -> None:
        """Go to the next leaf; `finished` when there is none, and the last path then stands."""
        offered, taken = self.path.offered, self.path.taken
        for depth in reversed(range(len(taken))):
            following = _next_possible(offered[depth], taken[depth] + 1)
            if following < len(offered[depth]):
                del offered[depth + 1 :], taken[depth + 1 :]
                taken[depth] = following
                return
        self.finished = True


class EnumeratedChoices:
    """`contracts.Choices` that follows trees instead of drawing: one tree for all rows, or one for each row."""

    def __init__(self, trees: list[DecisionTree], *, one_tree_a_row: bool) -> None:
        self._trees = trees
        self._one_tree_a_row = one_tree_a_row

    def categorical(self, logits: Tensor) -> Tensor:
        if not logits.double().logsumexp(-1).isfinite().all():
            raise ValueError(
                "categorical: a row of logits has no finite maximum; each needs one possible choice, no NaN"
            )
        each_RMV = logits.detach().double().softmax(-1).reshape(logits.shape[0], -1, logits.shape[-1])
        return self._decide(each_RMV).reshape(logits.shape[:-1])

    def accept(self, log_probability_R: Tensor) -> Tensor:
        if log_probability_R.isnan().any():
            raise ValueError("accept: a log-probability is NaN; is an energy not finite?")
        yes_R = log_probability_R.detach().double().exp().clamp(max=1.0)
        return self._decide(torch.stack([1 - yes_R, yes_R], dim=-1)[:, None, :])[:, 0] == 1

    def _decide(self, probabilities_RMV: Tensor) -> Tensor:
        rows = probabilities_RMV.tolist()
        if self._one_tree_a_row and len(rows) != len(self._trees):
            raise ValueError(f"every call decides for all {len(self._trees)} rows, came {len(rows)}")
        trees = self._trees if self._one_tree_a_row else self._trees * len(rows)
        return torch.tensor([[tree.decide(each) for each in row] for tree, row in zip(trees, rows, strict=True)])


def enumerate_paths(run: Callable[[Choices], Outcome]) -> list[tuple[float, Outcome]]:
    """(probability, outcome) of every path of `run`; the decisions of all its rows make one path.

    >>> enumerate_paths(lambda choices: bool(choices.accept(torch.tensor([0.25]).log())))
    [(0.75, False), (0.25, True)]
    """
    (walked,) = _walk(lambda choices: [run(choices)], [DecisionTree()], one_tree_a_row=False)
    return [(path.probability, outcome) for path, outcome in walked]


def enumerate_rows(run: Callable[[Choices], Sequence[Outcome]], *, rows: int) -> list[list[tuple[float, Outcome]]]:
    """The same for a batch of independent rows, all trees walked at once: as many runs as the richest row has paths,
    instead of the product over rows. `run` returns one outcome a row, comparable by ==.

    Then the rows are shuffled against each other: in some more runs each follows a path picked at random from its own,
    and must be offered the same probabilities and reach the same outcome as before, whatever the others do.
    """
    trees = [DecisionTree() for _ in range(rows)]
    walked = _walk(run, trees, one_tree_a_row=True)
    pick = random.Random(0)
    for _ in range(INDEPENDENCE_RUNS if rows > 1 else 0):
        picked = [pick.choice(paths) for paths in walked]
        for tree, (path, _) in zip(trees, picked, strict=True):
            tree.path = path.copy()
        outcomes = run(EnumeratedChoices(trees, one_tree_a_row=True))
        for row, (tree, (path, expected), outcome) in enumerate(zip(trees, picked, outcomes, strict=True)):
            tree.end_run()
            if len(tree.path.taken) != len(path.taken) or outcome != expected:
                raise AssertionError(f"row {row} came to {outcome} instead of {expected} {WHEN_REPEATED}")
    return [[(path.probability, outcome) for path, outcome in paths] for paths in walked]


def _walk(
    run: Callable[[Choices], Sequence[Outcome]], trees: list[DecisionTree], *, one_tree_a_row: bool
) -> list[list[tuple[Path, Outcome]]]:
    walked: list[list[tuple[Path, Outcome]]] = [[] for _ in trees]
    for _ in range(MAX_PATHS):
        outcomes = run(EnumeratedChoices(trees, one_tree_a_row=one_tree_a_row))
        for tree, outcome, paths in zip(trees, outcomes, walked, strict=True):
            tree.end_run()
            if not tree.finished:
                paths.append((tree.path.copy(), outcome))
            tree.advance()
        if all(tree.finished for tree in trees):
            return walked
    raise ValueError(f"more than {MAX_PATHS:,} paths; use a smaller language, or a single step of the sampler")


def _next_possible(probabilities: list[float], start: int) -> int:
    """The first option from `start` on that can happen; the number of options if there is none."""
    return next((i for i in range(start, len(probabilities)) if probabilities[i] > 0), len(probabilities))
