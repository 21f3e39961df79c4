"""Importance weights in log space: their mean, their shares, and how many independent draws they are worth.

    log (1/n) Σ w_i            p_i = w_i / Σ w            ESS = 1 / Σ p_i²   (between 1 and n)

Relations  `estimators.log_partition` and `samplers.resampling` are made of these.
"""

import math

from torch import Tensor


def log_mean_exp(log_weight: Tensor, *, dim: int = -1) -> Tensor:
    return log_weight.logsumexp(dim) - math.log(log_weight.shape[dim])


def normalized_log_weights(log_weight: Tensor, *, dim: int = -1) -> Tensor:
    """log p_i."""
    return log_weight.log_softmax(dim)


def effective_sample_size(log_weight: Tensor, *, dim: int = -1) -> Tensor:
    """How many equally weighted draws the weighted ones are worth."""
    return (-(2 * normalized_log_weights(log_weight, dim=dim)).logsumexp(dim)).exp()


def leave_one_out_log_sum(log_weight_N: Tensor) -> Tensor:
    """(…, N): log Σ_{j ≠ i} w_j for every i, stable where one weight is almost the whole sum.

    log Σ + log(1 − p_i) is right to rounding while p_i ≤ ½. At most one p_i is larger, and for that one the sum of the
    others is taken directly.
    """
    log_share_N = normalized_log_weights(log_weight_N)
    largest = log_share_N.argmax(-1, keepdim=True)
    without_largest = log_weight_N.scatter(-1, largest, float("-inf")).logsumexp(-1, keepdim=True)
    others_N = log_weight_N.logsumexp(-1, keepdim=True) + (-log_share_N.exp()).log1p()
    return others_N.scatter(-1, largest, without_largest)
