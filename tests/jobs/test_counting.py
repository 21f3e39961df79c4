"""Counted work: products, traffic and operations of code that runs once, by hand."""

import pytest
import torch
from torch import nn

from energylm.jobs.counting import scaled, work_of
from energylm.models.compute import Work


def test_a_product_and_a_sum_by_hand():
    """(3, 4) times (4, 5) are 2·3·4·5 operations and no traffic; adding one number to 15 moves 31 floats."""
    a, b, one = torch.ones(3, 4), torch.ones(4, 5), torch.ones(1)
    assert work_of(lambda: (a @ b) + one) == Work(flops=120, bytes=4 * (15 + 1 + 15), operations=2)
    assert work_of(lambda: a.T[None]) == Work()  # views do nothing


def test_the_backward_pass_costs_two_forward_ones():
    layer, x = nn.Linear(6, 7, bias=False), torch.ones(2, 6, requires_grad=True)
    forward = work_of(lambda: layer(x))
    both = work_of(lambda: layer(x).sum().backward())
    assert forward.flops == 2 * 2 * 6 * 7 and both.flops == 3 * forward.flops


def test_products_of_an_lstm_are_seen_though_it_usually_runs_fused():
    """Four gates of width 5 from 3 inputs and 5 states, at each of 4 positions of 2 rows."""
    lstm, x = nn.LSTM(3, 5, batch_first=True), torch.ones(2, 4, 3)
    before = torch.backends.mkldnn.enabled
    assert work_of(lambda: lstm(x)).flops == 2 * 2 * 4 * 4 * 5 * (3 + 5)
    assert torch.backends.mkldnn.enabled == before


def test_more_rows_are_more_work_but_only_more_passes_are_more_operations():
    work = scaled(Work(10, 20, 30), 4, passes=2)
    assert work == Work(40, 80, 60)
    assert scaled(Work(10, 20, 30), 4, passes=1).operations == pytest.approx(30)
