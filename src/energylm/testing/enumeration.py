"""Every sequence over a tiny vocabulary, and the place of a sequence in such a list.

    fixed length T      V^T sequences, in lexicographic order
    ended by EOS        all sequences that end with their first EOS, or are cut at T tokens; the rest is filled with EOS

and every multiset of n independent draws, with the exact expectation of a statistic of them:

    E[f(X_1 … X_n)] = Σ_{x_1 ≤ … ≤ x_n}  n! / Π_i c_i!  ·  Π_j p(x_j)  ·  f(x_1 … x_n)          c_i copies of outcome i

f must not depend on the order of its arguments: estimators of log Z, resampled laws, averages. C(S + n − 1, n) terms.

Use it     to turn an expectation over sequences into a sum, and to check claims about an estimator at small n, such as
           E[log (1/n) Σ w_i] ≤ log Z for every n.
Relations  `exact` attaches probabilities to the rows; `tabular_language_model` and `tabular_scores` are indexed so.
"""

import math
from collections.abc import Callable
from itertools import chain, combinations_with_replacement, islice

import numpy as np
import torch
from torch import Tensor

MAX_SEQUENCES = 10_000_000
CHUNK = 100_000
MAX_MULTISETS = 50_000_000


def enumerate_sequences(vocabulary_size: int, length: int, *, eos_token_id: int | None = None) -> Tensor:
    """(N, T) int64: every sequence of `length` tokens, or, with `eos_token_id`, every one that ends within `length`."""
    if vocabulary_size < 1 or length < 0:
        raise ValueError(f"needs vocabulary_size ≥ 1 and length ≥ 0, came {vocabulary_size} and {length}")
    if vocabulary_size**length > MAX_SEQUENCES:
        raise ValueError(f"{vocabulary_size}^{length} sequences are too many to enumerate (limit {MAX_SEQUENCES:,})")
    power_T = vocabulary_size ** torch.arange(length - 1, -1, -1)
    sequences_NT = torch.arange(vocabulary_size**length)[:, None] // power_T % vocabulary_size
    if eos_token_id is None:
        return sequences_NT
    if not 0 <= eos_token_id < vocabulary_size:
        raise ValueError(f"eos_token_id {eos_token_id} is not in the vocabulary 0 … {vocabulary_size - 1}")
    is_eos_NT = sequences_NT == eos_token_id
    ended_NT = is_eos_NT.cumsum(1) > 0
    return sequences_NT[(is_eos_NT == ended_NT).all(1)]


def sequence_lengths(tokens_NT: Tensor, *, eos_token_id: int | None) -> Tensor:
    """(N,) tokens up to and including the first EOS; T where there is none."""
    is_eos_NT = tokens_NT == eos_token_id if eos_token_id is not None else torch.zeros_like(tokens_NT, dtype=torch.bool)
    eos_before_NT = is_eos_NT.cumsum(1) - is_eos_NT.long()
    return (eos_before_NT == 0).sum(1)


def index_of(sequences_NT: Tensor, universe_ST: Tensor) -> Tensor:
    """(N,) the row of `universe` that equals each sequence; one that is not there is an error."""
    smallest, largest = torch.cat([sequences_NT, universe_ST]).aminmax()
    base = int(largest) + 1
    if smallest < 0 or base ** universe_ST.shape[1] >= 1 << 63:
        raise ValueError("index_of needs non-negative tokens whose base-V numbers fit 63 bits; use a smaller universe")
    codes_S, order_S = _codes(universe_ST, base).sort()
    codes_N = _codes(sequences_NT, base)
    index_N = torch.searchsorted(codes_S, codes_N).clamp(max=len(codes_S) - 1)
    missing_N = codes_S[index_N] != codes_N
    if missing_N.any():
        row = sequences_NT[missing_N][0].tolist()
        raise ValueError(f"{int(missing_N.sum())} of {len(codes_N)} sequences are outside the universe, e.g. {row}")
    return order_S[index_N]


def history_index(tokens_BT: Tensor, lengths_B: Tensor, vocabulary_size: int) -> Tensor:
    """(B,) the place of the first `length` tokens of each row among all sequences, shorter ones first, then by order:
    (V^length − 1) / (V − 1) sequences are shorter, and the tokens read as a base-V number count those before it."""
    columns = tokens_BT.shape[1]
    inside_BT = torch.arange(columns) < lengths_B[:, None]
    wrong_BT = inside_BT & ((tokens_BT < 0) | (tokens_BT >= vocabulary_size))
    if wrong_BT.any() or (lengths_B > columns).any():
        raise ValueError(f"tokens must lie in 0 … {vocabulary_size - 1} and lengths in 0 … {columns}")
    index_B = torch.zeros_like(lengths_B)
    for position in range(columns):  # the child v of node i of a V-ary tree, counted level by level, is V·i + v + 1
        child_B = vocabulary_size * index_B + tokens_BT[:, position] + 1
        index_B = torch.where(inside_BT[:, position], child_B, index_B)
    return index_B


def history_count(vocabulary_size: int, max_length: int) -> int:
    """How many sequences of 0 … max_length tokens there are."""
    return sum(vocabulary_size**length for length in range(max_length + 1))


def all_histories(vocabulary_size: int, max_length: int) -> list[tuple[int, ...]]:
    """The sequences that `history_index` counts, in its order."""
    return [
        tuple(row) for length in range(max_length + 1) for row in enumerate_sequences(vocabulary_size, length).tolist()
    ]


def _codes(sequences_NT: Tensor, base: int) -> Tensor:
    code_N = torch.zeros(sequences_NT.shape[0], dtype=torch.int64)
    for position in range(sequences_NT.shape[1]):
        code_N = code_N * base + sequences_NT[:, position]
    return code_N


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
