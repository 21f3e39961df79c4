"""Self-normalisation: local models whose log Z is near zero, so that raw scores can be searched.

    L = − Σ_t log p(y*_t | …) + λ Σ_t (log Z_t)²,   log Z_t = log Σ_v exp f(h_t, v)       goyal2021 §5.3.1

A model trained by cross-entropy alone leaves log Z anywhere (means above 20 in table 5.1): its raw scores, summed over
a sequence, are another ranking, and a search by them collapses. Where log Z ≈ 0 raw and normalised scores agree.

Use it     to pretrain what globally normalised training starts from.
Relations  added to `cross_entropy`; after it `search` with `locally_normalized=False` makes sense.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.records import Record


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
