"""The log-partition function of a residual model, between two estimates.

    Z(c) = E_{x ~ P_LM(·|c)} [w(x)],  w = exp(−E)
    lower   T_n = log (1/n) Σ_i w_i                                          E[T_n] ≤ log Z for every n
    upper   (2n − 1) T_n − 2(n − 1) T_{n−1}                                  E[upper] ≥ log Z for large n only
                                                                             Deng et al. 2020, theorem 2
T_{n−1} is the mean of the n leave-one-out estimates (Nowozin 2018). (The theorem prints Z where it means log Z.) With
p_i = w_i / Σ w the distance of the two is computed as

    upper − T_n = −2(n − 1) [log(n / (n − 1)) + (1/n) Σ_i log(1 − p_i)]  ≥ 0  on every sample (Jensen),

which loses nothing to cancellation. A high log Z means a *high* perplexity, so T_n is the optimistic end of a
perplexity interval. Weights must come from the untruncated language model: a truncated proposal estimates another sum.

Use it     with as many draws as the ESS asks for: an ESS of a few says that both ends may be far off.
Relations  `sampler_certificate` needs no large n, but speaks of the sampler instead of the model.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from energylm.errors import ConfigError
from energylm.numerics.importance import (
    effective_sample_size,
    leave_one_out_log_sum,
    log_mean_exp,
    normalized_log_weights,
)
from energylm.records import Record

COLUMNS = ("lower", "upper", "standard_error", "ess", "largest_share")
TRUSTED_ESS = 20.0  # below this a handful of draws decide the estimate, and the next draw may move it
_ROUNDING = 1e-6  # n equal weights are worth n, which arithmetic gives as a little less


def is_weak(ess: float) -> bool:
    """Whether an effective sample size is too small to trust what it stands behind."""
    return ess < TRUSTED_ESS - _ROUNDING


def shown_ess(ess: float) -> str:
    """With one decimal, rounded down: what lies below a limit is shown below it."""
    return f"{math.floor(10 * (ess + _ROUNDING)) / 10:.1f}"


@dataclass(frozen=True)
class LogPartition(Record):
    """Estimates of log Z, one per context, in nats."""

    lower: Tensor  # (B,)
    upper: Tensor  # (B,)
    standard_error: Tensor  # (B,) of `lower`, by the delta method
    ess: Tensor  # (B,)
    largest_share: Tensor  # (B,) the share of the largest weight in the sum
    n: int
    caution: str | None = None  # what is known against the energy before anything is measured
    runs: int | None = None  # of sequential Monte Carlo, among which the n particles are shared; None: n draws

    @property
    def warning(self) -> str | None:
        """What the user should know before trusting the numbers; None if nothing."""
        weak = sum(map(is_weak, self.ess.tolist()))
        if not weak:
            return self.caution
        few = (
            f"for {weak} of {len(self.ess)} contexts the {self.n:,} samples are worth fewer than {TRUSTED_ESS:g} "
            f"independent ones (the least: {shown_ess(float(self.ess.min()))}): a few lucky samples decide these "
            "estimates and the interval may be too low; draw more samples, or calibrate the energy"
        )
        return few if self.caution is None else f"{self.caution}; {few}"


def log_partition(log_weight_BN: Tensor) -> LogPartition:
    """Both estimates from the log-weights −E of n draws of the untruncated language model for each of B contexts."""
    log_weight_BN = log_weight_BN.double()
    n = log_weight_BN.shape[1]
    if n < 2:
        raise ConfigError(
            f"the upper estimate of log Z needs at least 2 samples a context, came {n}; ask for 1,000 or so"
        )
    largest_B = log_weight_BN.amax(-1)  # nan wherever one is
    if largest_B.isnan().any() or (largest_B == math.inf).any():
        raise ConfigError("an energy is not finite (nan or −inf); retrain or recalibrate the energy before measuring")
    if (largest_B == -math.inf).any():
        raise ConfigError(
            f"the energy forbids all of the {n:,} samples of a context, so that log Z cannot be told; draw more, or "
            "loosen the constraint"
        )
    lower_B = log_mean_exp(log_weight_BN)
    log_share_BN = normalized_log_weights(log_weight_BN)
    log_others_share_BN = leave_one_out_log_sum(log_weight_BN) - log_weight_BN.logsumexp(-1, keepdim=True)
    gap_B = -2 * (n - 1) * (math.log(n / (n - 1)) + log_others_share_BN.mean(-1))
    second_moment_B = (2 * log_share_BN).logsumexp(-1).exp()  # Σ p_i²
    return LogPartition(
        lower=lower_B,
        upper=lower_B + gap_B.clamp(min=0.0),
        standard_error=((second_moment_B - 1 / n).clamp(min=0.0) * n / (n - 1)).sqrt(),
        ess=effective_sample_size(log_weight_BN),
        largest_share=log_share_BN.amax(-1).exp(),
        n=n,
    )


def log_partition_of_runs(log_estimate_BR: Tensor, *, particles: int) -> LogPartition:
    """The same from log Ẑ of independent runs of sequential Monte Carlo with `particles` particles each. Ẑ is unbiased,
    so the runs stand in for draws. What the particles are worth follows from the scatter v of the runs' mean, relative
    to it: n / (1 + n v), which for independent draws is their effective sample size."""
    of_runs = log_partition(log_estimate_BR)
    runs = log_estimate_BR.shape[1]
    n = runs * particles
    return replace(of_runs, ess=n / (1 + n * of_runs.standard_error.square()), n=n, runs=runs)
