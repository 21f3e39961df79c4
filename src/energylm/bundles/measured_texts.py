"""What is known of single texts before it becomes a perplexity: numbers of each text, which blocks of texts share out.

A perplexity is a ratio of sums over texts, so texts can be measured in blocks, anywhere, and joined. The JSON forms
keep every digit.

Relations  `residual_measures` fills them; `estimators.joint_perplexity` and `position_perplexity` turn them to numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from energylm.config.sampling import CONFIDENCE
from energylm.estimators.joint_perplexity import JointPerplexity, joined, joint_perplexity
from energylm.estimators.log_partition import LogPartition
from energylm.estimators.position_perplexity import PositionPerplexity, position_perplexity
from energylm.estimators.stepwise import stepwise_log_probs
from energylm.records import Record


@dataclass(frozen=True)
class MeasuredTexts(Record):
    """B texts, measured with one or several numbers of samples a context."""

    lm_log_prob: Tensor  # (B,) log P_LM(x | c)
    energy: Tensor  # (B,) E(c, x)
    tokens: Tensor  # (B,) that are scored
    bytes: Tensor | None  # (B,) None where no bytes are known
    partitions: tuple[LogPartition, ...]  # one for each number of samples
    certified: tuple[Tensor, ...]  # (B,) the sampler's log-probability, one for each number of samples

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Blocks of texts as one."""
        sizes = [part.bytes for part in parts if part.bytes is not None]
        return cls(
            lm_log_prob=torch.cat([part.lm_log_prob for part in parts]),
            energy=torch.cat([part.energy for part in parts]),
            tokens=torch.cat([part.tokens for part in parts]),
            bytes=torch.cat(sizes) if len(sizes) == len(parts) else None,
            partitions=tuple(map(joined, zip(*(part.partitions for part in parts), strict=True))),
            certified=tuple(map(torch.cat, zip(*(part.certified for part in parts), strict=True))),
        )

    def perplexities(
        self, *, convention: str, caution: str | None, confidence: float = CONFIDENCE
    ) -> list[JointPerplexity]:
        """One for each number of samples."""
        return [
            joint_perplexity(
                self.lm_log_prob,
                self.energy,
                partition,
                certified_B,
                self.tokens,
                self.bytes,
                convention=convention,
                caution=caution,
                confidence=confidence,
            )
            for partition, certified_B in zip(self.partitions, self.certified, strict=True)
        ]


@dataclass(frozen=True)
class MeasuredPositions(Record):
    """B texts, measured at each of T positions."""

    lm_log_prob: Tensor  # (B, T) log P_LM(x_t | c, x_<t)
    energy: Tensor  # (B,)
    last_log_prob: Tensor  # (B,) of the joint model at the last position, exactly
    futures: tuple[LogPartition, ...]  # (T,) log Z of what stands before each position

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Blocks of texts as one."""
        return cls(
            lm_log_prob=torch.cat([part.lm_log_prob for part in parts]),
            energy=torch.cat([part.energy for part in parts]),
            last_log_prob=torch.cat([part.last_log_prob for part in parts]),
            futures=tuple(map(joined, zip(*(part.futures for part in parts), strict=True))),
        )

    def perplexity(self, *, first_position: int, convention: str, caution: str | None) -> PositionPerplexity:
        lower_BT, upper_BT = stepwise_log_probs(self.lm_log_prob, -self.energy, self.futures)
        return position_perplexity(
            self.lm_log_prob,
            lower_BT,
            upper_BT,
            self.last_log_prob,
            self.futures,
            first_position=first_position,
            convention=convention,
            caution=caution,
        )
