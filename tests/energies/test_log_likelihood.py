"""Threshold and direction of the likelihood baseline: by hand, against every threshold, both directions, bad input."""

import pytest
import torch
from torch.testing import assert_close

from energylm.bundles.zero_shot_energy import ScoreRule, fit_rule
from energylm.errors import DataError


def accuracy(rule, real, machine):
    return 0.5 * float((rule(real) < 0).double().mean()) + 0.5 * float((rule(machine) > 0).double().mean())


def test_by_hand():
    """Real −5, −4, −1 and machine −3, −2: above −3.5 all machine and one real, so s = +1, θ = −3.5, (2/3 + 1) / 2."""
    real, machine = torch.tensor([-4.0, -1.0, -5.0]), torch.tensor([-2.0, -3.0])
    rule = fit_rule(real, machine)
    assert rule == ScoreRule(sign=1, threshold=-3.5)
    assert accuracy(rule, real, machine) == pytest.approx(5 / 6)
    assert_close(rule(torch.tensor([-3.0])), torch.tensor([0.5]))


def test_the_direction_follows_the_data():
    """Top-k text is likelier than real text, text at a high temperature less likely; a fixed direction fails at one."""
    numbers = torch.Generator().manual_seed(0)
    real = torch.randn(300, generator=numbers) - 3
    for offset, sign in ((2.0, 1), (-2.0, -1)):
        machine = torch.randn(300, generator=numbers) - 3 + offset
        rule = fit_rule(real, machine)
        assert rule.sign == sign and accuracy(rule, real, machine) > 0.8
        assert accuracy(ScoreRule(-sign, rule.threshold), real, machine) < 0.2  # teeth


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_in_either_direction_is_better(seed):
    """Values repeat and classes differ in size; every threshold between and beyond all values is tried."""
    numbers = torch.Generator().manual_seed(seed)
    real = torch.randint(0, 9, (13,), generator=numbers).double()
    machine = torch.randint(0, 9, (7,), generator=numbers).double() + seed % 3 - 1
    best = max(
        accuracy(ScoreRule(sign, float(threshold)), real, machine)
        for sign in (1, -1)
        for threshold in torch.arange(-3, 12) + 0.5
    )
    assert accuracy(fit_rule(real, machine), real, machine) == pytest.approx(best)


def test_all_values_alike_still_give_a_rule():
    rule = fit_rule(torch.zeros(3), torch.zeros(2))
    assert accuracy(rule, torch.zeros(3), torch.zeros(2)) in (0.0, 0.5)


def test_bad_input_is_one_line():
    for real, machine, said in (
        (torch.zeros(0), torch.zeros(2), "no real text"),
        (torch.zeros(2), torch.zeros(0), "no machine text"),
        (torch.zeros(2), torch.tensor([float("nan")]), "machine text is not finite"),
    ):
        with pytest.raises(DataError, match=said):
            fit_rule(real, machine)
