"""Cross-entropy of next-token predictions, and the penalty that keeps its local normalisers near one.

    L = − Σ_b Σ_t log softmax(logits_bt)[target_bt]                nats, over the positions that count

Dividing by the count gives nats per token, exp of that the perplexity. Sum and count are returned apart, so that
micro-batches, processes and validation batches add up before anyone divides: a mean of means weighs tokens of short
batches more than others. Use it to train or to validate any model that gives a distribution over the vocabulary.

Self-normalisation:  + λ Σ_t (log Z_t)²,   log Z_t = log Σ_v exp f(h_t, v)                  goyal2021 §5.3.1

A model trained by cross-entropy alone leaves log Z anywhere (means above 20 in table 5.1): its raw scores, summed over
a sequence, are another ranking, and a search by them collapses. Where log Z ≈ 0 raw and normalised scores agree. Use it
to pretrain what globally normalised training starts from; after it `search` with `locally_normalized=False` makes
sense.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.records import Record

IGNORED = -100  # the target of a position that does not count (padding), torch's own convention


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The summed negative log-likelihood (), in float32 at least; targets of `IGNORED` add nothing."""
    # float16 and bfloat16 sums over thousands of tokens lose digits; float32 and float64 pass through without a copy.
    logits = logits_BTV.float() if logits_BTV.element_size() < 4 else logits_BTV
    return F.cross_entropy(logits.flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def count_targets(targets_BT: Tensor) -> int:
    """How many positions count."""
    return int((targets_BT != IGNORED).sum())


@dataclass(frozen=True)
class LogZ(Record):
    """The spread of the local normaliser over positions."""

    mean: float
    variance: float
    positions: int


def squared_log_z_sum(scores_BTV: Tensor, mask_BT: Tensor) -> Tensor:
    """() Σ (log Z)² over the positions that `mask_BT` marks."""
    return (scores_BTV.logsumexp(-1).square() * mask_BT).sum()


def log_z_moments(scores_BTV: Tensor, mask_BT: Tensor) -> Tensor:
    """(3,) float64: positions, Σ log Z, Σ (log Z)²; add them over batches, then `log_z_spread`."""
    log_z_BT = scores_BTV.logsumexp(-1).double()
    mask_BT = mask_BT.double()
    return torch.stack([mask_BT.sum(), (log_z_BT * mask_BT).sum(), (log_z_BT.square() * mask_BT).sum()])


def log_z_spread(moments_3: Tensor) -> LogZ:
    """Mean and variance from the moments."""
    positions, total, squares = moments_3.tolist()
    mean = total / max(positions, 1)
    return LogZ(mean=mean, variance=max(squares / max(positions, 1) - mean**2, 0.0), positions=int(positions))
