"""Learning rates by hand."""

import math

import pytest
from torch.testing import assert_close

from energylm.config.training import TrainingConfig
from energylm.training.optimizer import learning_rate_factor

ROOT_HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("kind", "warmup_steps", "expected"),
    [
        # w = 2, S = 10: p = (u − 3) / 8 for u = 3 … 10. cos(π/4) = √½.
        ("linear", 2, [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("cosine", 2, [0.5, 1, 1, None, (1 + ROOT_HALF) / 2, None, 0.5, None, (1 - ROOT_HALF) / 2, None]),
        ("constant", 2, [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        # √(2/u)
        ("inverse-sqrt", 2, [0.5, 1, math.sqrt(2 / 3), ROOT_HALF, None, None, None, 0.5, None, math.sqrt(0.2)]),
        # no warm-up: the first update already uses the highest rate
        ("linear", 0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ("inverse-sqrt", 0, [1, ROOT_HALF, None, 0.5, None, None, None, None, 1 / 3, None]),
        # none = a tenth of the steps = 1
        ("linear", None, [1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9]),
    ],
)
def test_factors_by_hand(kind, warmup_steps, expected):
    config = TrainingConfig.checked({"steps": 10, "schedule": {"kind": kind, "warmup_steps": warmup_steps}})
    for update, factor in enumerate(expected, start=1):
        if factor is not None:
            assert_close(learning_rate_factor(config, update), float(factor), atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_decay_ends_at_zero_after_the_last_update_not_before(kind):
    config = TrainingConfig.checked({"steps": 100, "schedule": {"kind": kind, "warmup_steps": 10}})
    factors = [learning_rate_factor(config, update) for update in range(1, 102)]
    assert all(0 < factor <= 1 for factor in factors[:100]) and abs(factors[100]) < 1e-15
    assert factors[9] == factors[10] == 1 and factors[10:] == sorted(factors[10:], reverse=True)


def test_inverse_square_root_needs_no_last_step():
    config = TrainingConfig.checked({"preset": "bakhtin2019/linear"})
    assert config.steps is None
    assert learning_rate_factor(config, 500) == 0.5 and learning_rate_factor(config, 1000) == 1
    assert learning_rate_factor(config, 4000) == 0.5 and learning_rate_factor(config, 100_000) == 0.1
