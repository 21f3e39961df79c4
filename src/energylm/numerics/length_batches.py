"""Sequences of similar length travel together: micro-batches that waste little on padding and fit a budget."""

from torch import Tensor


def length_batches(lengths_B: Tensor, *, tokens_at_once: int) -> list[tuple[Tensor, int]]:
    """Rows that go through a network together, and the length of the longest of them; rows of length 0 are left out.

    `tokens_at_once` bounds rows × longest, but a row that is longer by itself still comes. Longest first, so that what
    does not fit into memory fails at once.
    """
    order_B = lengths_B.argsort(descending=True, stable=True)
    order_B = order_B[lengths_B[order_B] > 0]
    batches, start = [], 0
    while start < len(order_B):
        longest = int(lengths_B[order_B[start]])
        rows = order_B[start : start + max(1, tokens_at_once // longest)]
        batches.append((rows, longest))
        start += len(rows)
    return batches
