"""Sequences of similar length travel together: micro-batches that waste little on padding and fit a budget.

Use it     for one pass of a network over sequences of different lengths whose results are put back by row.
Relations  training has its own batches, whose order is a function of seed and step.
"""

from torch import Tensor

PASS_TOKENS = 512  # a pass over fewer costs hardly less, so shorter rows may as well fill it up
LEAST_SHARE = 0.875  # of the longest row: shorter ones go into a pass of their own, rather than be padded


def length_batches(lengths_B: Tensor, *, tokens_at_once: int) -> list[tuple[Tensor, int]]:
    """Rows that go through a network together, and the length of the longest of them; rows of length 0 are left out.

    `tokens_at_once` bounds rows × longest, but a row that is longer by itself still comes. Longest first, so that what
    does not fit into memory fails at once.
    """
    order_B = lengths_B.argsort(descending=True, stable=True)
    order_B = order_B[lengths_B[order_B] > 0]
    lengths = lengths_B[order_B].tolist()
    starts: list[int] = []
    for index, length in enumerate(lengths):
        padded = (index - starts[-1]) * lengths[starts[-1]] if starts else 0  # tokens of the batch so far
        if (
            not starts
            or padded + lengths[starts[-1]] > tokens_at_once
            or (padded >= PASS_TOKENS and length < LEAST_SHARE * lengths[starts[-1]])
        ):
            starts.append(index)
    ends = [*starts, len(lengths)][1:]
    return [(order_B[start:end], lengths[start]) for start, end in zip(starts, ends, strict=True)]
