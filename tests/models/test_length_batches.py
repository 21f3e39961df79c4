"""Micro-batches by length: every row once, budgets kept, longest first."""

import torch

from energylm.models.contexts import length_batches


def test_by_hand():
    """Lengths 3, 0, 7, 5, 7 and 15 tokens at once: two of 7 fit, then 5 and 3 together; the empty one is left out."""
    batches = length_batches(torch.tensor([3, 0, 7, 5, 7]), tokens_at_once=15)
    assert [(rows.tolist(), longest) for rows, longest in batches] == [([2, 4], 7), ([3, 0], 5)]


def test_a_row_that_is_too_long_by_itself_still_comes():
    batches = length_batches(torch.tensor([2, 9]), tokens_at_once=4)
    assert [(rows.tolist(), longest) for rows, longest in batches] == [([1], 9), ([0], 2)]
    assert length_batches(torch.zeros(0, dtype=torch.int64), tokens_at_once=4) == []


def test_a_full_pass_takes_no_row_that_is_mostly_padding():
    """9 rows of 60 fill a pass (540 tokens), so 50 begins another one; 53 is more than 7/8 of 60 and goes along."""
    lengths = torch.tensor([60] * 9 + [50] * 3)
    assert [len(rows) for rows, _ in length_batches(lengths, tokens_at_once=10_000)] == [9, 3]
    lengths = torch.tensor([60] * 9 + [53] * 3)
    assert [len(rows) for rows, _ in length_batches(lengths, tokens_at_once=10_000)] == [12]
    lengths = torch.tensor([60] * 8 + [50] * 3)  # 480 tokens: one more fills the pass
    assert [len(rows) for rows, _ in length_batches(lengths, tokens_at_once=10_000)] == [9, 2]
