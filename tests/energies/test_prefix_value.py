"""A value of prefixes on a language where it is known: tokens are independent, so what lies ahead is a constant.

An energy that is the mean of its tokens' scores has −log E[exp(−E) | x_≤t] = τ · E(x_≤t) + constant: the slope at τ is
τ. One that is their sum has slope 1 everywhere.
"""

import pytest
import torch

from energylm import ResidualModel
from energylm.config.sampling import JointSampling
from energylm.energies.prefix_value import KNOTS, PrefixValue, fit_prefix_value, hat_functions, lookahead_energies
from energylm.errors import ConfigError, DataError
from energylm.testing import TabularEnergy, TabularLanguageModel

NEW, CUTS = 8, torch.arange(1, 8) / 8
SCORES = torch.tensor([-1.0, 1.0])


def draws(*, contexts=400, k=16, seed=0):
    return torch.randint(2, (contexts, k, NEW), generator=torch.Generator().manual_seed(seed))


def energies(tokens, *, scale, mean):
    """Of prefixes (B, K, J) and of whole texts (B, K)."""
    total = scale * SCORES[tokens].double().cumsum(-1)
    if mean:
        total = total / torch.arange(1, NEW + 1)
    return total[..., :-1], total[..., -1]


@pytest.mark.parametrize(("mean", "scale"), [(True, 6.0), (False, 0.3)])
def test_the_slope_is_what_lasts_until_the_end(mean, scale):
    prefix, whole = energies(draws(), scale=scale, mean=mean)
    value = fit_prefix_value(prefix, CUTS, whole)
    expected = torch.tensor(KNOTS if mean else [1.0] * len(KNOTS))
    torch.testing.assert_close(torch.tensor(value.slopes[1:]), expected[1:], atol=0.12, rtol=0)
    assert value.loss < value.loss_without - 0.05
    # teeth: prefixes of other texts say nothing, and are found to
    strangers = fit_prefix_value(prefix.roll(1, 1), CUTS, whole)
    assert max(map(abs, strangers.slopes[1:-1])) < 0.3 and strangers.loss > value.loss


def test_hats_sum_to_one_and_the_last_is_the_energy_itself():
    hats = hat_functions(torch.linspace(0, 1, 33, dtype=torch.float64))
    torch.testing.assert_close(hats.sum(-1), torch.ones(33, dtype=torch.float64))
    value = PrefixValue([0.1, 0.2, 0.3, 0.4, 1.0], [5.0, 4.0, 3.0, 2.0, 0.0], 9, 1.0, 2.0)
    energy = torch.tensor([2.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(value(energy, torch.tensor([8, 8]), 8), energy)
    by_hand = torch.tensor([0.3 * 2 + 3.0, 0.25 * -1 + 3.5], dtype=torch.float64)  # at 1/2, and between 1/4 and 1/2
    torch.testing.assert_close(value(energy, torch.tensor([4, 3]), 8), by_hand)


def test_folders_and_names(tmp_path):
    value = PrefixValue([0.5] * 4 + [1.0], [0.0] * 5, 9, 1.0, 2.0)
    value.save(tmp_path)
    assert lookahead_energies(str(tmp_path)) == value
    assert lookahead_energies("none") is None
    with pytest.raises(ConfigError, match="neither 'energy' nor 'none'"):
        lookahead_energies(str(tmp_path / "nothing"))


def test_what_cannot_be_fitted_is_told():
    prefix, whole = energies(draws(contexts=3), scale=1.0, mean=True)
    with pytest.raises(DataError, match="3 contexts with 16 draws"):
        fit_prefix_value(prefix, CUTS, whole)
    with pytest.raises(DataError, match="not finite"):
        fit_prefix_value(prefix, CUTS, torch.full_like(whole, float("inf")))


def test_a_fitted_value_steadies_log_z(tmp_path):
    """200 runs of 16 particles: the scatter of log Ẑ is smaller with the value than without lookahead, beyond the
    error of two such scatters (5 % each)."""
    lm = TabularLanguageModel.from_function(lambda history: [0.5, 0.5], vocabulary_size=2, length=NEW)
    energy = TabularEnergy.from_function(
        lambda text: 9.0 * sum(2.0 * token - 1 for token in text) / max(1, len(text)), vocabulary_size=2, length=NEW
    )
    prefix, whole = energies(draws(), scale=9.0, mean=True)
    fit_prefix_value(prefix, CUTS, whole).save(tmp_path)
    joint = ResidualModel(lm, energy)

    def scatter(lookahead):
        options = JointSampling(sampler="smc", n=16, max_new_tokens=NEW, block_tokens=1, lookahead=lookahead)
        samples = joint.sample_batch([[]] * 200, options, seed=1)
        return float(torch.tensor([sample.report.log_partition for sample in samples]).std())

    assert scatter(str(tmp_path)) < 0.85 * scatter("none")
