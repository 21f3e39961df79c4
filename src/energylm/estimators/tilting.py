"""How far a score carries, and what it costs: the curve of mean score against KL divergence, from one pool of draws.

    π_β(x) ∝ P(x) · exp(β s(x))                       soft best-of-n: β = 0 is the base, β → ∞ the best of the pool
    score  Σ_i p_i s_i                                p_i = w_i / Σ_j w_j,   w_i = exp(β s_i) · P(x_i) / q(x_i)
    KL     Σ_i p_i β s_i − log (1/n) Σ_i w_i          of π_β from P, in nats; from n draws of q it is at most log n
                                                      where q is P
Both are ratios of means, so they have a bias of order 1/n; the jackknife takes it away and gives the standard error:
with θ_(i) the estimate without draw i and θ̄ their mean,

    θ = n θ_all − (n − 1) θ̄            error² = (n − 1)/n Σ_i (θ_(i) − θ̄)²                 Quenouille 1956, Tukey 1958

In a trial over 96 random languages (pools of 64 to 1,000, β of 0.5 to 2) ±1.96 errors of KL covered its exact value in
94 % of 9,600 pools, 91 to 95 % by setting: the errors are a little too small.

A score of −inf forbids a draw at every β. What n draws can carry is said by their effective number: a β at which they
are worth fewer than `TRUSTED_ESS` is beyond the pool, and its row says so.

Use it     to choose β before trusting what a large one writes; no new draws are needed.
Relations  `log_partition` gives the error of log Z alone; `samplers.resampling` draws from π_β.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.errors import ConfigError
from energylm.estimators.log_partition import TRUSTED_ESS, is_weak, shown_ess
from energylm.numerics.importance import effective_sample_size
from energylm.plots import LinePlot, Series
from energylm.records import Record
from energylm.tables import Table

FEWEST_FOR_ERRORS = 3  # draws: the jackknife leaves one out of at least two others
_REFINEMENTS = 5  # of a grid of 64: β to one part in a billion


@dataclass(frozen=True)
class TiltPoint(Record):
    """The tilted base at one β."""

    beta: float
    score: float  # mean under π_β
    score_error: float  # standard error, as the next
    kl: float  # of π_β from the base, nats
    kl_error: float
    ess: float

    computed = ("is_trusted",)

    @property
    def is_trusted(self) -> bool:
        return not is_weak(self.ess)


@dataclass(frozen=True, repr=False)
class RewardCurve(Record):
    """Mean score against KL over β, from the n draws of one context."""

    points: list[TiltPoint]
    n: int
    largest_beta: float | None  # that n draws can carry; None where none is too large

    computed = ("warning",)

    @property
    def warning(self) -> str | None:
        weak = [point for point in self.points if not point.is_trusted]
        if not weak:
            return None
        worst = min(weak, key=lambda point: point.ess)
        limit = "" if self.largest_beta is None else f" (they carry β up to {self.largest_beta:.3g})"
        return (
            f"at β = {worst.beta:g} the {self.n:,} draws are worth {shown_ess(worst.ess)} independent ones, fewer than "
            f"{TRUSTED_ESS:g}{limit}; draw more, or lower β"
        )

    @property
    def table(self) -> Table:
        rows = [
            [point.beta, point.score, point.score_error, point.kl, point.kl_error, point.ess] for point in self.points
        ]
        return Table(
            ["β", "mean score", "±", "KL", "± ", "ESS"],
            rows,
            convention=f"score and KL (nats) of the tilted base, from {self.n:,} draws; ± standard error (jackknife)",
        )

    def plot(self) -> LinePlot:
        """What a nat of KL buys; points beyond what the draws carry are a line of their own."""
        trusted, others = ([point for point in self.points if point.is_trusted is wanted] for wanted in (True, False))
        lines = [
            Series(name, [point.kl for point in points], [point.score for point in points])
            for name, points in (("mean score", trusted), ("too few draws to trust", others))
            if points
        ]
        return LinePlot(lines, x_label="KL from the base (nats)", y_label="mean score")


def reward_curve(score_N: Tensor, *, betas: Sequence[float], base_log_weight_N: Tensor | None = None) -> RewardCurve:
    """The curve from the scores of n draws of q; `base_log_weight_N` = log P/q where q is not the base itself."""
    score_N = score_N.double()
    n = len(score_N)
    base_N = torch.zeros_like(score_N) if base_log_weight_N is None else base_log_weight_N.double()
    if n < FEWEST_FOR_ERRORS:
        raise ConfigError(f"a curve with errors needs at least {FEWEST_FOR_ERRORS} draws, came {n}; draw 64 or more")
    if score_N.isnan().any() or (score_N == math.inf).any() or (score_N == -math.inf).all():
        raise ConfigError("a score is nan or +inf, or all are −inf; mend the score, or draw more candidates")
    if any(not math.isfinite(beta) for beta in betas):
        raise ConfigError(f"β must be finite, came {', '.join(map(str, betas))}")
    points = [tilt_point(score_N, beta, base_N) for beta in betas]
    return RewardCurve(points, n, _largest_beta(score_N, base_N))


def _log_weights(score_N: Tensor, beta: Tensor | float, base_N: Tensor) -> tuple[Tensor, Tensor]:
    """log w and β s (…, N) for β (…, 1), with forbidden draws at −inf and 0."""
    allowed_N = score_N.isfinite()
    log_ratio_N = beta * torch.where(allowed_N, score_N, 0.0)
    return torch.where(allowed_N, log_ratio_N + base_N, -math.inf), log_ratio_N


def tilt_point(score_N: Tensor, beta: float, base_log_weight_N: Tensor) -> TiltPoint:
    """One point of the curve, from float64 scores of at least `FEWEST_FOR_ERRORS` draws and their log P/q."""
    log_weight_N, log_ratio_N = _log_weights(score_N, beta, base_log_weight_N)
    share_N = log_weight_N.softmax(0)
    finite_N = torch.where(score_N.isfinite(), score_N, 0.0)
    log_mean = log_weight_N.logsumexp(0) - math.log(len(score_N))
    others_N = 1 - share_N  # what the other draws weigh, of 1
    without_N = others_N.log() + log_weight_N.logsumexp(0) - math.log(len(score_N) - 1)
    mean, mean_without_N = _ratio(share_N, finite_N, others_N)
    gain, gain_without_N = _ratio(share_N, log_ratio_N, others_N)
    score, score_error = _jackknife(mean, mean_without_N)
    kl, kl_error = _jackknife(gain - log_mean, gain_without_N - without_N)
    return TiltPoint(beta, score, score_error, max(kl, 0.0), kl_error, float(effective_sample_size(log_weight_N)))


def _ratio(share_N: Tensor, value_N: Tensor, others_N: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean of `value`, and that without each draw."""
    mean = (share_N * value_N).sum()
    return mean, mean - share_N * (value_N - mean) / others_N


def _jackknife(all_draws: Tensor, without_N: Tensor) -> tuple[float, float]:
    """Estimate and standard error; a draw that is the whole sum leaves neither."""
    n = len(without_N)
    if not without_N.isfinite().all():
        return float(all_draws), math.inf
    centre = without_N.mean()
    error = ((n - 1) / n * (without_N - centre).square().sum()).sqrt()
    return float(n * all_draws - (n - 1) * centre), float(error)


def _largest_beta(score_N: Tensor, base_N: Tensor) -> float | None:
    """The β > 0 at which the draws are worth `TRUSTED_ESS` (their number falls as β grows), by nested grids."""
    finite_N = score_N[score_N.isfinite()]
    spread = float(finite_N.max() - finite_N.min())
    low, high = 0.0, 1e3 / spread if spread else 0.0  # exp(−1000) is nothing
    for _ in range(_REFINEMENTS):
        beta_G = torch.linspace(low, high, 65, dtype=torch.float64)
        ess_G = effective_sample_size(_log_weights(score_N, beta_G[:, None], base_N)[0])
        too_large = [index for index, ess in enumerate(ess_G.tolist()) if is_weak(ess)]
        if not too_large or not too_large[0]:
            return 0.0 if too_large else None
        low, high = float(beta_G[too_large[0] - 1]), float(beta_G[too_large[0]])
    return low
