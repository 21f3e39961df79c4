"""Does a model's own text look to it like real text? Densities of log-probabilities and the difference of their means.

    Δ = | mean log P(x), x ~ P  −  mean log P(x), x real |                        nats; Deng et al. 2020, fig. 3

If P were the data's distribution both sides would have the same law, so Δ = 0 is necessary (not sufficient). The base
model judges its own samples; the joint model, log P(x | c) = log P_LM(x | c) − E(c, x) − log Z(c), judges what joint
sampling drew: its log Z must be estimated for each context, without which contexts would be shifted against each other.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from energylm.errors import DataError
from energylm.report.plots import LinePlot, Series

POINTS = 200  # of a drawn curve


@dataclass(frozen=True)
class DensityGap:
    """One model's view of its own samples and of real text; log-probabilities in nats of whole continuations."""

    own_mean: float
    real_mean: float
    difference: float  # |own − real|
    standard_error: float  # of the difference, over texts, as if the two groups were independent
    own: tuple[float, ...]
    real: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"own": list(self.own), "real": list(self.real)}


def density_gap(own_log_probs: Sequence[float], real_log_probs: Sequence[float]) -> DensityGap:
    own, real = np.asarray(own_log_probs, dtype=np.float64), np.asarray(real_log_probs, dtype=np.float64)
    if min(own.size, real.size) < 2:
        raise DataError(f"a density needs at least 2 texts a side, came {own.size} and {real.size}; give more contexts")
    return DensityGap(
        own_mean=float(own.mean()),
        real_mean=float(real.mean()),
        difference=abs(float(own.mean() - real.mean())),
        standard_error=math.sqrt(own.var(ddof=1) / own.size + real.var(ddof=1) / real.size),
        own=tuple(own.tolist()),
        real=tuple(real.tolist()),
    )


def density_plot(gap: DensityGap, *, model: str) -> LinePlot:
    """Kernel density estimates (Scott's rule) of both groups on one axis."""
    everything = np.array([*gap.own, *gap.real])
    margin = 0.15 * (everything.max() - everything.min()) or 1.0
    grid = np.linspace(everything.min() - margin, everything.max() + margin, POINTS)
    lines = [
        Series(name, grid.tolist(), _density(np.array(values), grid).tolist())
        for name, values in (("real text", gap.real), (f"samples of the {model}", gap.own))
    ]
    return LinePlot(lines, x_label=f"log-probability under the {model} (nats)", y_label="density")


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    if np.ptp(values) == 0:
        raise DataError(f"all {values.size} texts have the same log-probability, so there is no density to draw")
    return gaussian_kde(values)(grid)
