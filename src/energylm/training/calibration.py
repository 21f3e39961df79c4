"""Scale and shift of a trained energy, fitted on held-out contexts by the loss it was trained with.

    min over a > 0, b of    Σ_c L(a·E + b) + (1/B) Σ_c L(−(a·E + b))              L = `objectives.residual_nce`

Networks become overconfident: their energies have the right order but are too large, and exp(−E) then lets a few
samples carry log Z. A shift cancels in the joint model, a scale does not. The objective is convex in (a, b); Newton's
method in float64 finds its minimum in a few steps.

The second sum is one context in B with its labels exchanged, after Platt (1999): B contexts cannot show that an energy
errs less often than once in B, so none is believed to. It keeps a finite where the energy tells all B apart, and fades
with B.

Use it     on contexts that neither training nor any report has seen (`by_window` halves the validation contexts).
Relations  `bundles.energy_model` keeps scale and shift; fig. 1 of Guo et al. 2017 is the same remedy for classifiers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from energylm.errors import DataError
from energylm.objectives.residual_nce import residual_nce

MIN_SCALE = 1e-3  # where the energy tells nothing, or the contrary: the joint model becomes the language model
_STEPS, _TOLERANCE = 100, 1e-12


@dataclass(frozen=True)
class Calibration:
    """E = scale · raw + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, raw_energy: Tensor) -> Tensor:
        return self.scale * raw_energy + self.shift

    @property
    def is_informative(self) -> bool:
        """Whether the energy told real from generated at all on the contexts it was fitted on."""
        return self.scale > MIN_SCALE


def fit_calibration(real_B: Tensor, noise_BK: Tensor) -> Calibration:
    """The best scale and shift for these raw energies of real text and of its negatives."""
    real_B, noise_BK = real_B.double(), noise_BK.double()
    if not len(real_B):
        raise DataError("no contexts to calibrate the energy on; hold out more (validation_fraction, --validation)")
    if not (real_B.isfinite().all() and noise_BK.isfinite().all()):
        raise DataError("an energy to be calibrated is not finite; the network has diverged, train it again")
    # Unit spread makes the curvature in scale and shift alike, whatever unit the energies come in.
    everything = torch.cat([real_B, noise_BK.flatten()])
    centre, spread = everything.mean(), everything.std(unbiased=False)
    if spread == 0:
        return Calibration(MIN_SCALE, 0.0)
    real_B, noise_BK = (real_B - centre) / spread, (noise_BK - centre) / spread

    def objective(parameters_2: Tensor) -> Tensor:
        scale, shift = parameters_2
        real, noise = scale * real_B + shift, scale * noise_BK + shift
        return residual_nce(real, noise).mean() + residual_nce(-real, -noise).mean() / len(real_B)

    lowest = MIN_SCALE * spread
    scale, shift = _minimise(objective, torch.stack([torch.ones_like(spread), torch.zeros_like(spread)]))
    if scale < lowest:  # convex: the best allowed point lies on the boundary
        scale, shift = lowest, _minimise(lambda shift_1: objective(torch.cat([lowest[None], shift_1])), shift[None])[0]
    return Calibration(scale=float(scale / spread), shift=float(shift - scale * centre / spread))


@torch.enable_grad()
def _minimise(objective: Callable[[Tensor], Tensor], start_P: Tensor) -> Tensor:
    """The minimum of a convex function by Newton's method; steps are halved until they descend."""
    point_P, value = start_P, objective(start_P)
    for _ in range(_STEPS):
        gradient_P = jacobian(objective, point_P)
        direction_P = torch.linalg.solve(hessian(objective, point_P), gradient_P)
        decrement = gradient_P @ direction_P
        if decrement < _TOLERANCE:
            break
        size = 1.0
        while (new_value := objective(point_P - size * direction_P)) > value - 1e-4 * size * decrement and size > 1e-6:
            size /= 2
        point_P, value = point_P - size * direction_P, new_value
    return point_P
