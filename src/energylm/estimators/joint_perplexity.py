"""Perplexity of a residual model as an interval, and the certified perplexity of its sampler beside it.

    log P(x | c) = log P_LM(x | c) − E(c, x) − log Z(c)                            Deng et al. 2020, eq. 2 and table 1

`lower`      with T_n for log Z: too low in expectation, for every n: the optimistic end
`upper`      with theorem 2's upper estimate: reaches log Z from above for large n only
`certified`  of the text that importance resampling with n draws really writes: for every n an upper bound in
             expectation, and beside it one with a stated confidence over the samples, for these texts

All three are totals over totals with standard errors over contexts, under one convention with the base model's.

The interval is of *expectations*: the samples' own scatter comes on top, and is told as `sampling_error`.

Relations  `log_partition`, `sampler_certificate`, `perplexity` are its parts; `position_perplexity` goes by position.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energylm.config.sampling import CONFIDENCE
from energylm.estimators.log_partition import COLUMNS, LogPartition
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.estimators.sampler_certificate import CertifiedPerplexity, certified_perplexity
from energylm.records import Record


@dataclass(frozen=True)
class EffectiveSamples(Record):
    """How many independent samples the n weighted ones of a context are worth, over contexts."""

    smallest: float
    median: float
    n: int


@dataclass(frozen=True)
class JointPerplexity(Record):
    """Of B texts. `lower` and `upper` are the ends of the joint model's interval."""

    base: PerplexityEstimate
    optimistic: PerplexityEstimate  # the lower end, with its standard error
    pessimistic: PerplexityEstimate  # the upper end
    certified: CertifiedPerplexity  # of the sampler
    log_partition: LogPartition
    lm_log_prob: Tensor  # (B,) log P_LM(x | c)
    energy: Tensor  # (B,) E(c, x)
    caution: str | None = None  # what is known against the energy before anything is measured

    computed = (
        "lower", "upper", "width", "n", "sampling_error", "ess", "bits_per_byte", "paired", "warning", "convention",
    )  # fmt: skip

    @property
    def lower(self) -> float:
        return self.optimistic.value

    @property
    def upper(self) -> float:
        return self.pessimistic.value

    @property
    def width(self) -> float:
        """Of the interval."""
        return self.upper - self.lower

    @property
    def sampling_error(self) -> float:
        """By how much other samples would move the interval: one standard error, by the delta method."""
        return self.lower * math.sqrt(float((self.log_partition.standard_error**2).sum())) / self.base.tokens

    @property
    def n(self) -> int:
        return self.log_partition.n

    @property
    def bits_per_byte(self) -> tuple[float, float] | None:
        """The same interval for comparison across tokenizers; None where no bytes are known."""
        ends = self.optimistic.bits_per_byte, self.pessimistic.bits_per_byte
        return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])

    @property
    def paired(self) -> dict[str, list[float]]:
        """What is compared text by text: P · (1 + nats_i / T − log P), by the base and by the joint model's upper end.

        T are the tokens of a text on average, so that the mean over texts is the perplexity P itself; the spread is
        the delta method's, and differences of the same texts have the error of the difference."""
        joint_B = self.energy.double() + self.log_partition.upper.double() - self.lm_log_prob.double()
        tokens = self.base.tokens / len(joint_B)

        def parts(nats_B: Tensor, value: float) -> list[float]:
            linear: list[float] = (value * (1 + nats_B / tokens - math.log(value))).tolist()
            return linear

        return {"base": parts(-self.lm_log_prob.double(), self.base.value), "joint": parts(joint_B, self.upper)}

    @property
    def ess(self) -> EffectiveSamples:
        values = self.log_partition.ess.tolist()
        return EffectiveSamples(smallest=min(values), median=statistics.median(values), n=self.n)

    @property
    def warning(self) -> str | None:
        """What the user should know before trusting the interval; None if nothing."""
        return "; ".join(filter(None, (self.caution, self.log_partition.warning))) or None

    @property
    def convention(self) -> str:
        runs = self.log_partition.runs
        samples, writer = (
            (f"{self.n:,} untruncated samples", "importance resampling with as many samples")
            if runs is None
            else (f"{runs} runs of {self.n // runs:,} particles", "sequential Monte Carlo with one run's particles")
        )
        return (
            f"{self.base.convention}; joint: {samples} a context, from T_n (the optimistic end) to the upper estimate, "
            f"which is one for large n only; certified: text that {writer} writes, an upper bound in expectation over "
            f"the samples for every n, its upper end with {self.certified.level} confidence over the samples, for "
            "these texts"
        )

    def summary(self) -> str:
        """One line for people."""
        return (
            f"base {self.base.value:.4g}, joint {self.lower:.4g} to {self.upper:.4g} (sampling error "
            f"{self.sampling_error:.2g}), certified {self.certified.value:.4g} in expectation and at most "
            f"{self.certified.bound:.4g} with {self.certified.level} confidence; the {self.n:,} samples of a context "
            f"are worth {self.ess.median:.3g} in the median, {self.ess.smallest:.3g} at least"
        )


def joint_perplexity(
    lm_log_prob_B: Tensor,
    energy_B: Tensor,
    estimate: LogPartition,
    certified_log_prob_B: Tensor,
    tokens_B: Tensor,
    bytes_B: Tensor | None = None,
    *,
    convention: str,
    caution: str | None = None,
    confidence: float = CONFIDENCE,
) -> JointPerplexity:
    """The interval and its companions from what is known of B texts and their contexts; the certified bound has
    `confidence`."""
    unnormalised_B = lm_log_prob_B.double() - energy_B.double()

    def of(log_prob_B: Tensor) -> PerplexityEstimate:
        return perplexity(log_prob_B, tokens_B, bytes_B, convention=convention)

    return JointPerplexity(
        base=of(lm_log_prob_B),
        optimistic=of(unnormalised_B - estimate.lower),
        pessimistic=of(unnormalised_B - estimate.upper),
        certified=certified_perplexity(
            certified_log_prob_B, tokens_B, bytes_B, convention=convention, confidence=confidence
        ),
        log_partition=estimate,
        lm_log_prob=lm_log_prob_B,
        energy=energy_B,
        caution=caution,
    )


def joined(parts: Sequence[LogPartition]) -> LogPartition:
    """Estimates of several blocks of contexts, from equally many samples, as one."""
    ((n, runs),) = {(part.n, part.runs) for part in parts}
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS}
    return LogPartition(**columns, n=n, runs=runs)
