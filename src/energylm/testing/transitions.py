"""The exact transition matrix of a Markov chain over an enumerable set of states, and what must be true of it.

    P_ij = Σ_{paths from i to j} Π_d P(decision d)                every random path, no sampling
    stationary      π P = π                                       a chain started in π stays in π
    reversible      π_i P_ij = π_j P_ji                           stronger: each step is its own time-reversal
    irreducible     every state is reached from every other       needed for π to be the only such distribution

Use it     to prove a kernel: Metropolis-Hastings with its reverse probabilities, block moves, sweeps.
Relations  `choices` walks the paths. An epoch is a product of its steps' matrices, averaged over whatever is chosen
           beforehand for all rows alike (the order of positions): far fewer paths than the whole epoch has.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.errors import extra
from energylm.testing.choices import enumerate_rows
from energylm.testing.enumeration import index_of

with extra("testing"):
    from scipy.sparse.csgraph import connected_components

Kernel = Callable[[Tensor, Choices], Tensor]  # (R, T) states and a source of decisions → (R, T) next states


def exact_transition_matrix(states_ST: Tensor, kernel: Kernel, *, rows_at_once: int | None = None) -> Tensor:
    """(S, S) float64: row i is the distribution of `kernel`'s next state from state i.

    All states travel in one batch (or `rows_at_once` of them, for memory's sake), as chains do in production. The
    kernel's rows must be independent, which is checked; `rows_at_once=1` is for kernels that know one chain only.
    """
    states = len(states_ST)
    matrix_SS = torch.zeros(states, states, dtype=torch.float64)
    for start in range(0, states, rows_at_once or states):
        rows = range(start, min(states, start + (rows_at_once or states)))
        paths_of_rows = enumerate_rows(_runner(kernel, states_ST, rows), rows=len(rows))
        for row, paths in zip(rows, paths_of_rows, strict=True):
            for probability, column in paths:
                matrix_SS[row, column] += probability
    return matrix_SS


def stationary_distribution(transition_SS: Tensor) -> Tensor:
    """(S,) the one π with π P = π. A chain with several is an error."""
    _check_stochastic(transition_SS)
    states = len(transition_SS)
    left_SS, singular_S, _ = torch.linalg.svd(transition_SS - torch.eye(states, dtype=torch.float64))
    if states > 1 and singular_S[-2] < 1e-10:
        raise ValueError("the chain has more than one stationary distribution: its states fall into closed classes")
    null_S: Tensor = left_SS[:, -1]
    return null_S / null_S.sum()


def is_irreducible(transition_SS: Tensor) -> bool:
    """Whether every state is reached from every other."""
    _check_stochastic(transition_SS)
    classes, _ = connected_components((transition_SS > 0).numpy(), directed=True, connection="strong")
    return int(classes) == 1


def is_reversible(target_S: Tensor, transition_SS: Tensor, *, atol: float = 1e-10) -> bool:
    """Whether detailed balance holds: the flow from i to j equals the flow back, for every pair."""
    _check_stochastic(transition_SS)
    flow_SS = target_S.double()[:, None] * transition_SS
    return bool((flow_SS - flow_SS.T).abs().max() <= atol)


def assert_stationary(target_S: Tensor, transition_SS: Tensor, *, atol: float = 1e-10) -> None:
    """Fail unless a chain that starts in `target` is still in `target` after one step, in every state."""
    _check_stochastic(transition_SS)
    target_S = target_S.double()
    if (target_S < 0).any() or abs(float(target_S.sum()) - 1) > 1e-8:
        raise ValueError(f"the target must be a probability distribution; it sums to {float(target_S.sum()):.8f}")
    change_S = target_S @ transition_SS - target_S
    worst = int(change_S.abs().argmax())
    if not change_S.abs().max() <= atol:
        raise AssertionError(
            f"the target is not stationary: state {worst} goes from {target_S[worst]:.6g} to "
            f"{target_S[worst] + change_S[worst]:.6g} in one step (allowed change {atol:g}); "
            f"total variation moved: {change_S.abs().sum() / 2:.3g}"
        )


def _runner(kernel: Kernel, states_ST: Tensor, rows: range) -> Callable[[Choices], list[int]]:
    def run(choices: Choices) -> list[int]:
        states_RT = states_ST[rows.start : rows.stop].clone()  # a fresh copy for each run: kernels may work in place
        indices: list[int] = index_of(kernel(states_RT, choices), states_ST).tolist()
        return indices

    return run


def _check_stochastic(transition_SS: Tensor) -> None:
    if not (transition_SS >= 0).all() or (transition_SS.sum(1) - 1).abs().max() > 1e-8:
        raise ValueError("every row of a transition matrix is a distribution: no negative entry, sum 1")
