"""The exact expectation of a statistic of n independent draws, by summing over all multisets of draws.

    E[f(X_1 … X_n)] = Σ_{x_1 ≤ … ≤ x_n}  n! / Π_i c_i!  ·  Π_j p(x_j)  ·  f(x_1 … x_n)          c_i copies of outcome i

f must not depend on the order of its arguments: estimators of log Z, resampled laws, averages. C(S + n − 1, n) terms.

Use it     to check claims about an estimator at small n, such as E[log (1/n) Σ w_i] ≤ log Z for every n.
"""

import math
from collections.abc import Callable
from itertools import chain, combinations_with_replacement, islice

import numpy as np
import torch
from torch import Tensor

CHUNK = 100_000
MAX_MULTISETS = 50_000_000


def enumerate_expectation(probabilities_S: Tensor, statistic: Callable[[Tensor], Tensor], *, n: int) -> Tensor:
    """E[statistic] over n independent draws of outcomes 0 … S−1.

    `statistic` maps outcomes (M, n) int64, M sets of draws at once, to (M,) or (M, …); the result has the rest's shape.
    """
    probabilities_S = probabilities_S.double()
    if n < 1 or (probabilities_S < 0).any() or abs(float(probabilities_S.sum()) - 1) > 1e-8:
        raise ValueError(
            f"needs n ≥ 1 and a probability distribution, came n = {n}, sum {float(probabilities_S.sum())}"
        )
    support = probabilities_S.nonzero()[:, 0].tolist()
    count = math.comb(len(support) + n - 1, n)
    if count > MAX_MULTISETS:
        raise ValueError(
            f"{count:,} multisets of {n} draws from {len(support)} outcomes are too many; make either smaller"
        )
    multisets = combinations_with_replacement(support, n)
    total = torch.zeros(())
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        flat = np.fromiter(chain.from_iterable(islice(multisets, size)), dtype=np.int64, count=size * n)
        outcomes_MN = torch.from_numpy(flat).reshape(size, n)
        weight_M = _orderings(outcomes_MN) * probabilities_S[outcomes_MN].prod(1)
        total = total + torch.tensordot(weight_M, statistic(outcomes_MN).double(), dims=1)
    return total


def _orderings(sorted_MN: Tensor) -> Tensor:
    """(M,) in how many orders each multiset can be drawn: n! over the factorials of its multiplicities."""
    n = sorted_MN.shape[1]
    copies_M = torch.ones(len(sorted_MN), dtype=torch.float64)
    repeated_M = torch.ones_like(copies_M)  # Π c_i!, built up as 1 · 2 · … along each run of equal outcomes
    for position in range(1, n):
        same_M = sorted_MN[:, position] == sorted_MN[:, position - 1]
        copies_M = torch.where(same_M, copies_M + 1, 1.0)
        repeated_M = repeated_M * copies_M
    return math.factorial(n) / repeated_M
