"""A residual model position by position: step-wise probabilities as intervals, perplexities, gains on the base model.

    log P(x_t | x_<t) = log P_LM(x_t | x_<t) + log A_{t+1} − log A_t                    Deng et al. 2020, eq. 5
    A_t = E_{x'_t … x'_T ~ P_LM(· | x_<t)} [exp(−E(x_<t, x'_t … x'_T))],  A_{T+1} = exp(−E(x))
    PPL_t = exp( −(1/B) Σ_b log P(x_bt | x_b,<t) )     gain_t = PPL_t(base) − PPL_t(joint)                       fig. 1

The numerator at t is the denominator at t + 1, so each A_t is estimated once and the steps telescope to
log P_LM(x) − E(x) − log A_1. Each log A_t lies between the two estimates of `log_partition`; the interval of a
difference crosses them: the lowest numerator with the highest denominator, and the other way round. At t = T the sum
over the vocabulary is exact (`last_step_log_prob`), so the estimate there can be held against the truth.

Relations  `log_partition` estimates A_t; `joint_perplexity` takes the continuation as a whole.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.estimators.log_partition import LogPartition
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.plots import LinePlot, Series
from energylm.records import Record
from energylm.tables import Cell, Table


def stepwise_log_probs(
    lm_log_prob_BT: Tensor, log_weight_B: Tensor, futures: Sequence[LogPartition]
) -> tuple[Tensor, Tensor]:
    """Lower and upper (B, T) log-probabilities. `futures[t]` estimates log A_t given x_<t; log_weight is −E(x)."""
    exact_B = log_weight_B.double()
    lower, upper = [], []
    for t, now in enumerate(futures):
        after = futures[t + 1] if t + 1 < len(futures) else None
        step_B = lm_log_prob_BT[:, t].double()
        lower.append(step_B + (exact_B if after is None else after.lower) - now.upper)
        upper.append(step_B + (exact_B if after is None else after.upper) - now.lower)
    return torch.stack(lower, dim=1), torch.stack(upper, dim=1)


def last_step_log_prob(lm_log_prob_BV: Tensor, energy_BV: Tensor, token_B: Tensor) -> Tensor:
    """(B,) exact log P(x_T | x_<T) from the next-token distribution and the energy of every possible last token."""
    joint_BV = (lm_log_prob_BV.double() - energy_BV.double()).log_softmax(-1)
    return joint_BV.gather(1, token_B[:, None])[:, 0]


@dataclass(frozen=True)
class PositionPerplexity(Record):
    """One entry a position: the position in the text (counted from 1), perplexities with errors over contexts."""

    positions: tuple[int, ...]
    base: tuple[PerplexityEstimate, ...]
    optimistic: tuple[PerplexityEstimate, ...]
    pessimistic: tuple[PerplexityEstimate, ...]
    last_exact: PerplexityEstimate  # of the last position, by enumerating the vocabulary
    sampling_error: tuple[float, ...]  # one standard error of what other samples would have given
    median_ess: tuple[float, ...]
    n: int
    warning: str | None

    computed = ("gain_lower", "gain_upper", "mean_gain", "last_position", "last_lower", "last_upper", "last_gain")

    @property
    def gain(self) -> tuple[tuple[float, float], ...]:
        """The interval of the perplexity gained on the base model at each position."""
        ends = zip(self.base, self.pessimistic, self.optimistic, strict=True)
        return tuple((base.value - high.value, base.value - low.value) for base, high, low in ends)

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [position, base.value, low.value, high.value, ess]
            for position, base, low, high, ess in zip(
                self.positions, self.base, self.optimistic, self.pessimistic, self.median_ess, strict=True
            )
        ]
        columns = ["position", "base", "joint, lower", "joint, upper", "median ESS"]
        exact = f"exactly {self.last_exact.value:.4g} at the last; {self.last_exact.convention}"
        return Table(columns, rows, convention=exact)

    def plot(self) -> LinePlot:
        """What the joint model gains on the base at each position; the last one also exactly."""
        positions = [float(position) for position in self.positions]
        series = [
            Series("upper end", positions, self.gain_upper),
            Series("lower end", positions, self.gain_lower),
            Series("exact", positions[-1:], [self.base[-1].value - self.last_exact.value]),
        ]
        return LinePlot(series, x_label="position", y_label="perplexity gained on the base")

    @property
    def gain_lower(self) -> tuple[float, ...]:
        return tuple(low for low, _ in self.gain)

    @property
    def gain_upper(self) -> tuple[float, ...]:
        return tuple(high for _, high in self.gain)

    @property
    def last_position(self) -> int:
        return self.positions[-1]

    @property
    def last_lower(self) -> float:
        return self.optimistic[-1].value

    @property
    def last_upper(self) -> float:
        return self.pessimistic[-1].value

    @property
    def mean_gain(self) -> tuple[float, ...]:
        """The middle of that interval."""
        return tuple((low + high) / 2 for low, high in self.gain)

    @property
    def last_gain(self) -> float:
        """What is gained at the last position, exactly."""
        return self.base[-1].value - self.last_exact.value


def position_perplexity(
    lm_log_prob_BT: Tensor,
    lower_log_prob_BT: Tensor,
    upper_log_prob_BT: Tensor,
    last_log_prob_B: Tensor,
    futures: Sequence[LogPartition],
    *,
    first_position: int,
    convention: str,
    caution: str | None = None,
) -> PositionPerplexity:
    """From the step-wise log-probabilities of B texts at T positions, the first of which is `first_position`."""

    def of(log_prob_B: Tensor) -> PerplexityEstimate:
        return perplexity(log_prob_B, torch.ones_like(log_prob_B), convention=convention)

    def by_position(log_prob_BT: Tensor) -> tuple[PerplexityEstimate, ...]:
        return tuple(of(column_B) for column_B in log_prob_BT.double().unbind(1))

    optimistic = by_position(upper_log_prob_BT)  # the higher probability is the lower perplexity
    variances = [float((estimate.standard_error**2).mean()) / len(last_log_prob_B) for estimate in futures]
    weak = [estimate.warning for estimate in futures if estimate.warning]
    few = f"at {len(weak)} of {len(futures)} positions, first: {weak[0]}" if weak else None
    return PositionPerplexity(
        positions=tuple(range(first_position, first_position + lm_log_prob_BT.shape[1])),
        base=by_position(lm_log_prob_BT),
        optimistic=optimistic,
        pessimistic=by_position(lower_log_prob_BT),
        last_exact=of(last_log_prob_B.double()),
        # A step is a difference of two estimates from pools of their own; the last numerator is exact.
        sampling_error=tuple(
            entry.value * math.sqrt(now + after)
            for entry, now, after in zip(optimistic, variances, [*variances[1:], 0.0], strict=True)
        ),
        median_ess=tuple(statistics.median(estimate.ess.tolist()) for estimate in futures),
        n=futures[0].n,
        warning="; ".join(filter(None, (caution, few))) or None,
    )
