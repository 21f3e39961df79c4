"""Scale and shift recovered where they are known, found by another route, finite where maximum likelihood is not."""

import math

import pytest
import scipy.optimize
import torch

from energylm.errors import DataError
from energylm.objectives.residual_nce import residual_nce
from energylm.training import calibration
from energylm.training.calibration import MIN_SCALE, Calibration, fit_calibration

CONTEXTS = 40_000


def true_energies(contexts=CONTEXTS, negatives=2, seed=0):
    """Energies that are exact log-ratios. Real scores are N(1, 1) and noise scores N(0, 1), so

    log P_data − log P_LM = −(x − 1)²/2 + x²/2 = x − 1/2        and        E(x) = 1/2 − x.
    """
    numbers = torch.Generator().manual_seed(seed)
    real_B = 1 + torch.randn(contexts, generator=numbers, dtype=torch.float64)
    noise_BK = torch.randn(contexts, negatives, generator=numbers, dtype=torch.float64)
    return 0.5 - real_B, 0.5 - noise_BK


def worst_error(fit):
    """Of scale and shift, for energies 3·E + 2, which scale 1/3 and shift −2/3 put right."""
    real_B, noise_BK = true_energies()
    fitted = fit(3 * real_B + 2, 3 * noise_BK + 2)
    return max(abs(3 * fitted.scale - 1), abs(fitted.shift + 2 / 3))


def test_the_known_scale_and_shift_are_recovered():
    """40,000 contexts: the standard error of the scale is about 0.01 of it, so 0.05 is five of them."""
    assert worst_error(fit_calibration) < 0.05


def test_summed_negatives_would_be_caught(monkeypatch):
    """The mistake: a sum over K = 2 negatives shifts E by −log 2."""
    monkeypatch.setattr(calibration, "residual_nce", lambda r, n: residual_nce(r, n) + residual_nce(0 * r, n))
    assert worst_error(fit_calibration) > 0.3


def test_a_flipped_sign_would_be_caught(monkeypatch):
    monkeypatch.setattr(calibration, "residual_nce", lambda real, noise: residual_nce(-real, -noise))
    assert worst_error(fit_calibration) > 0.3


def test_the_minimum_is_that_of_another_optimiser():
    """The formula of the header, minimised by scipy without derivatives, on raw energies far from unit spread."""
    real_B, noise_BK = true_energies(contexts=60, seed=4)
    real_B, noise_BK = 40 * real_B - 300, 40 * noise_BK - 300

    def objective(parameters):
        real, noise = (math.exp(parameters[0]) * (energy + 300) + parameters[1] for energy in (real_B, noise_BK))
        return float(residual_nce(real, noise).sum() + residual_nce(-real, -noise).sum() / 60)

    best = scipy.optimize.minimize(
        objective, [-3.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    fitted = fit_calibration(real_B, noise_BK)
    assert fitted.scale == pytest.approx(math.exp(best.x[0]), rel=1e-5)
    assert fitted.shift == pytest.approx(best.x[1] + 300 * math.exp(best.x[0]), rel=1e-5)


def test_energies_that_tell_all_apart_keep_a_finite_scale():
    """By hand: E = −1 for real and +1 for noise. L(a) = 2 softplus(−a) + (2/B) softplus(a) is least where
    σ(−a) = σ(a)/B, so a = log B: B contexts cannot show more than one error in B."""
    fitted = fit_calibration(-torch.ones(50), torch.ones(50, 3))
    assert fitted.scale == pytest.approx(math.log(50), abs=1e-6) and fitted.shift == pytest.approx(0, abs=1e-6)


def test_an_energy_that_is_contrary_or_constant_is_switched_off():
    real_B, noise_BK = true_energies(contexts=500)
    contrary = fit_calibration(-real_B, -noise_BK)
    assert contrary.scale == pytest.approx(MIN_SCALE) and not contrary.is_informative
    assert abs(float(contrary(-real_B).mean())) < 0.01  # the shift is refitted with the scale
    assert not fit_calibration(torch.ones(5), torch.ones(5, 2)).is_informative
    assert fit_calibration(real_B, noise_BK).is_informative


def test_calibrating_twice_changes_nothing():
    real_B, noise_BK = true_energies(contexts=300, seed=1)
    first = fit_calibration(5 * real_B + 1, 5 * noise_BK + 1)
    second = fit_calibration(first(5 * real_B + 1), first(5 * noise_BK + 1))
    assert second.scale == pytest.approx(1, abs=1e-6) and second.shift == pytest.approx(0, abs=1e-6)
    assert Calibration()(real_B).equal(real_B)


@pytest.mark.parametrize("real", [[], [float("nan")]])
def test_nothing_and_not_a_number_are_refused(real):
    with pytest.raises(DataError, match="; "):
        fit_calibration(torch.tensor(real), torch.zeros(len(real), 2))
