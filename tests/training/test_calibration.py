"""Scale and shift recovered where they are known, found by another route, finite where maximum likelihood is not."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from energylm.errors import DataError
from energylm.objectives.residual_energy import residual_nce
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
    energies = np.concatenate([real_B.numpy(), noise_BK.numpy().ravel()])
    middle_half = np.subtract(*np.quantile(energies, [0.75, 0.25]))
    assert contrary.scale * middle_half == pytest.approx(MIN_SCALE) and not contrary.is_informative
    assert abs(float(contrary(-real_B).mean())) < 0.01  # the shift is refitted with the scale
    constant = fit_calibration(torch.full((5,), 7.0), torch.full((5, 2), 7.0))
    assert not constant.is_informative and float(constant(torch.tensor(7.0))) == pytest.approx(0, abs=1e-9)
    assert fit_calibration(real_B, noise_BK).is_informative


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("informative", [True, False])
def test_the_unit_and_zero_of_energies_do_not_matter(unit, informative):
    """Energies c·E + d get the calibrated energies of E, and the scale's error goes with the scale. Teeth: a least
    scale in the energies' own unit would be more than 100 times the best one for c = 10⁶."""
    real_B, noise_BK = (energy if informative else -energy for energy in true_energies(contexts=200, seed=2))
    first, other = fit_calibration(real_B, noise_BK), fit_calibration(unit * (real_B - 300), unit * (noise_BK - 300))
    for raw in (real_B, noise_BK):
        torch.testing.assert_close(other(unit * (raw - 300)), first(raw), rtol=1e-8, atol=1e-8)
    assert other.scale * unit == pytest.approx(first.scale, rel=1e-8)
    assert other.scale_standard_error * unit == pytest.approx(first.scale_standard_error, rel=1e-6)
    assert other.is_informative == first.is_informative == informative
    if unit == 1e6:
        assert max(other.scale, MIN_SCALE) > 100 * other.scale


def slopes(real_B, noise_BK, scale, shift):
    """The objective's derivatives by scale and shift, from the formula of the header, in exact sums."""

    def sigmoid(x):
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0

    contexts, negatives = noise_BK.shape
    parts = []
    for energy, weight in [(e, 1 / contexts) for e in real_B.tolist()]:
        parts.append((weight * (sigmoid(scale * energy + shift) - sigmoid(-scale * energy - shift) / contexts), energy))
    for energy in noise_BK.flatten().tolist():
        weight = 1 / contexts / negatives
        parts.append((weight * (sigmoid(scale * energy + shift) / contexts - sigmoid(-scale * energy - shift)), energy))
    return math.fsum(slope * energy for slope, energy in parts), math.fsum(slope for slope, _ in parts)


@pytest.mark.parametrize("outlier", [1e3, -1e3, 1e8, -1e8, 1e12, -1e12])
@pytest.mark.parametrize("of", ["real", "noise"])
def test_the_minimum_is_found_whatever_the_outliers(outlier, of):
    """A convex function is least where its slopes are 0, or on the boundary where it rises from there. Both are checked
    by another route. Teeth: with a spread that the outlier makes (a standard deviation) the boundary itself moves."""
    real_B, noise_BK = true_energies(contexts=100, seed=3)
    (real_B if of == "real" else noise_BK[:, 0])[17] = outlier
    fitted = fit_calibration(real_B, noise_BK)
    by_scale, by_shift = slopes(real_B, noise_BK, fitted.scale, fitted.shift)
    everything = torch.cat([real_B, noise_BK.flatten()])
    assert by_shift == pytest.approx(0, abs=1e-9)
    if fitted.is_informative:
        assert by_scale == pytest.approx(0, abs=1e-9 * abs(outlier))
    else:
        least = MIN_SCALE / float(np.subtract(*np.quantile(everything, [0.75, 0.25])))
        assert by_scale > 0 and fitted.scale == pytest.approx(least)
        assert float(MIN_SCALE / everything.std()) < least / 10
    # On the right side a text may lie far out; one in B with its labels exchanged (here of 100) bounds how far.
    assert fitted.is_informative == ((of, outlier) in {("real", -1e3), ("noise", 1e3)})
    assert math.isfinite(fitted.scale) and math.isfinite(fitted.shift)


def test_a_few_energies_of_their_own_do_not_make_the_spread_zero():
    """90 of 100 energies are equal, so the middle half is a point; 95 are, and so are the middle nine tenths."""
    for others in (10, 5):
        real_B, noise_BK = torch.zeros(50), torch.zeros(50, 1)
        real_B[:others] = -1.0
        fitted = fit_calibration(real_B, noise_BK)
        assert slopes(real_B, noise_BK, fitted.scale, fitted.shift) == pytest.approx((0, 0), abs=1e-9)
        assert fitted.is_informative


def test_the_scales_error_by_hand():
    """E = −1 for real and +1 for noise, a = log B, b = 0. With s = σ(a)σ(−a) = B/(B + 1)² every text adds s(1 + 1/B) to
    H_aa and ±that to H_ab, which cancels: H_aa = 2B·s(1 + 1/B) = 2B/(B + 1)."""
    for contexts in (1, 4, 50):
        fitted = fit_calibration(-torch.ones(contexts), torch.ones(contexts, 3))
        assert fitted.contexts == contexts
        if contexts > 1:  # one context with its labels exchanged knows nothing: log 1 = 0
            assert fitted.scale_standard_error == pytest.approx(math.sqrt((contexts + 1) / (2 * contexts)), rel=1e-6)
    assert not fit_calibration(-torch.ones(1), torch.ones(1, 3)).is_informative


def test_the_scales_error_is_the_spread_of_scales_over_samples():
    """100 samples of 200 contexts with one negative each, whose energies are log-ratios: the mean error is the standard
    deviation of the fitted scales, which 100 samples know to 7 % (three of these allowed). Teeth: forgetting that 200
    contexts add up is wrong by √200."""
    fits = [fit_calibration(*true_energies(contexts=200, negatives=1, seed=seed)) for seed in range(100)]
    spread = float(np.std([fit.scale for fit in fits]))
    error = float(np.mean([fit.scale_standard_error for fit in fits]))
    assert error == pytest.approx(spread, rel=0.21)
    assert error * math.sqrt(200) > 10 * spread


def test_contexts_that_pull_in_other_directions_make_the_error_larger():
    """Energies four times as large as log-ratios, turned round in one context of four: the error is that of a bootstrap
    over contexts (120 resamples, known to 6.5 %; three of these allowed), more than the curvature alone tells."""
    real_B, noise_BK = true_energies(contexts=300, negatives=1, seed=5)
    factor_B = torch.where(torch.arange(300) % 4 == 0, -4.0, 4.0).double()
    real_B, noise_BK = factor_B * real_B, factor_B[:, None] * noise_BK
    fitted = fit_calibration(real_B, noise_BK)
    numbers = np.random.default_rng(0)
    scales = []
    for _ in range(120):
        chosen = torch.from_numpy(numbers.integers(0, 300, 300))
        scales.append(fit_calibration(real_B[chosen], noise_BK[chosen]).scale)
    assert fitted.scale_standard_error == pytest.approx(float(np.std(scales)), rel=0.195)
    weights = torch.cat([real_B, noise_BK[:, 0]])
    chance = (fitted.scale * weights + fitted.shift).sigmoid()
    bend = chance * (1 - chance)
    curvature = float((bend * weights**2).sum() - (bend * weights).sum() ** 2 / bend.sum())
    assert fitted.scale_standard_error > 1.1 / math.sqrt(curvature)


def test_negatives_without_contexts_have_no_error():
    """A detector's machine texts belong to no human text: (1, M) negatives stand for all contexts."""
    real_B, noise_BK = true_energies(contexts=300, negatives=1)
    together = fit_calibration(real_B, noise_BK.T)
    paired = fit_calibration(real_B, noise_BK)
    assert together.scale == pytest.approx(paired.scale, rel=1e-9) and together.scale_standard_error is None


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
