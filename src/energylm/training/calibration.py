"""Scale and shift of a trained energy, fitted on held-out contexts by the loss it was trained with.

    min over a ≥ a₀, b of    Σ_c L(a·E + b) + (1/B) Σ_c L(−(a·E + b))             L = `residual_nce`

Networks become overconfident: their energies have the right order but are too large, and exp(−E) then lets a few
samples carry log Z. A shift cancels in the joint model, a scale does not. Energies have no unit, so they are first
measured from their median in units of their middle half, which a few outliers do not move; a₀ is in these units, too.
The objective is convex in (a, b): the best b for each a is the root of an increasing function, and so is the best a.
Roots are bracketed, hence found whatever the energies.

The second sum is one context in B with its labels exchanged, after Platt (1999): B contexts cannot show that an energy
errs less often than once in B, so none is believed to. It keeps a finite where the energy tells all B apart, and fades
with B.

The standard error of the scale is the larger of two: from the curvature H of the sum, 1/√(H_aa − H_ab²/H_bb), and from
the spread of the contexts' own gradients (the sandwich H⁻¹ Σ g gᵀ H⁻¹). The first is right for log-ratios with one
negative, and errs on the side of caution with more; the second knows contexts that pull in other directions.

Use it     on contexts that neither training nor any report has seen (`by_window` halves the validation contexts).
Relations  `bundles.energy_model` keeps scale and shift; fig. 1 of Guo et al. 2017 is the same remedy for classifiers.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from energylm.errors import DataError, extra
from energylm.objectives.residual_energy import residual_nce

with extra("train"):
    from scipy.optimize import brentq

MIN_SCALE = 1e-3  # where the energy tells nothing, or the contrary: the joint model becomes the language model
_INNER_SHARES = (0.25, 0.05, 0.0)  # left out on either side of what is measured, until it is wider than a point
_BEYOND = 50.0  # σ(±50) is 1 and 0 to every digit


@dataclass(frozen=True)
class Calibration:
    """E = scale · raw + shift."""

    scale: float = 1.0
    shift: float = 0.0
    contexts: int = 0  # it was fitted on
    scale_standard_error: float | None = None  # None where negatives belong to no context, or nothing was fitted
    is_informative: bool = True  # whether the energy told real from generated at all on these contexts

    def __call__(self, raw_energy: Tensor) -> Tensor:
        return self.scale * raw_energy + self.shift


def fit_calibration(real_B: Tensor, noise_BK: Tensor) -> Calibration:
    """The best scale and shift for these raw energies of real text and of its negatives; (1, K) negatives that belong
    to no context stand for all."""
    real_B, noise_BK = real_B.double(), noise_BK.double()
    if not len(real_B):
        raise DataError("no contexts to calibrate the energy on; hold out more (validation_fraction, --validation)")
    if not (real_B.isfinite().all() and noise_BK.isfinite().all()):
        raise DataError("an energy to be calibrated is not finite; the network has diverged, train it again")
    centre, spread = _centre_and_spread(torch.cat([real_B, noise_BK.flatten()]))
    if spread == 0:
        return Calibration(MIN_SCALE, -MIN_SCALE * centre, contexts=len(real_B), is_informative=False)
    fit = _Fit((real_B - centre) / spread, (noise_BK - centre) / spread)
    scale = fit.best_scale()
    shift = fit.best_shift(scale)
    error = fit.standard_error(scale, shift) if len(noise_BK) == len(real_B) else math.nan
    return Calibration(
        scale=scale / spread,
        shift=shift - scale * centre / spread,
        contexts=len(real_B),
        scale_standard_error=error / spread if math.isfinite(error) else None,
        is_informative=scale > MIN_SCALE,
    )


def _centre_and_spread(energy_N: Tensor) -> tuple[float, float]:
    """The median, and the range of the middle half; of more where that is a single point, 0 where all are equal."""
    values = energy_N.numpy()
    for share in _INNER_SHARES:
        low, high = np.quantile(values, [share, 1 - share])
        if high > low:
            break
    return float(np.median(values)), float(high - low)


class _Fit:
    """The objective for standardised energies, and its minimum."""

    def __init__(self, real_B: Tensor, noise_BK: Tensor) -> None:
        self.real_B, self.noise_BK = real_B, noise_BK
        self._furthest = float(max(real_B.abs().max(), noise_BK.abs().max()))

    def losses(self, parameters_2: Tensor) -> Tensor:
        """(B,) what each context adds to the objective, times B. Scale and shift may also be (B,), one for each."""
        scale, shift = parameters_2
        real, noise = scale * self.real_B + shift, scale[..., None] * self.noise_BK + shift[..., None]
        return residual_nce(real, noise) + residual_nce(-real, -noise) / len(self.real_B)

    def objective(self, parameters_2: Tensor) -> Tensor:
        return self.losses(parameters_2).mean()

    @torch.enable_grad()
    def gradient(self, scale: float, shift: float) -> tuple[float, float]:
        by_scale, by_shift = jacobian(self.objective, _pair(scale, shift)).tolist()
        return by_scale, by_shift

    def best_shift(self, scale: float) -> float:
        far = scale * self._furthest + _BEYOND
        return float(brentq(lambda shift: self.gradient(scale, shift)[1], -far, far, xtol=1e-13))

    def best_scale(self) -> float:
        """The best scale with the shift that suits it, not below MIN_SCALE."""

        def slope(scale: float) -> float:
            return self.gradient(scale, self.best_shift(scale))[0]

        if slope(MIN_SCALE) >= 0:  # convex: the best allowed scale lies on the boundary
            return MIN_SCALE
        high = 1.0
        while slope(high) < 0:
            high *= 2
        return float(brentq(slope, MIN_SCALE, high, xtol=1e-13))

    @torch.enable_grad()
    def standard_error(self, scale: float, shift: float) -> float:
        """Of the scale, over contexts."""
        at_2, contexts = _pair(scale, shift), len(self.real_B)
        (curvature, mixed), (_, by_shift) = (contexts * hessian(self.objective, at_2)).tolist()
        information = curvature - mixed**2 / by_shift if by_shift > 0 else 0.0
        if information <= 0:
            return math.inf
        by_scale_B, by_shift_B = jacobian(lambda own_2B: self.losses(own_2B).sum(), at_2[:, None].expand(2, contexts))
        pull_B = (by_scale_B - mixed / by_shift * by_shift_B) / information
        return max(1 / math.sqrt(information), float((pull_B - pull_B.mean()).square().sum().sqrt()))


def _pair(scale: float, shift: float) -> Tensor:
    return torch.tensor([scale, shift], dtype=torch.float64)
