"""Truncated proposals: temperature, then top-k, then top-p, as candidates of each row.

    q(v) ∝ exp(l_v / τ) · 1[v among the k likeliest] · 1[v in the smallest set of likeliest with mass ≥ p]

The k likeliest tokens lie in the k blocks with the largest maxima, so `top_k` looks for blocks first and sorts only the
k·64 logits inside them: the same answer as `torch.topk` at a fraction of its cost. Exactly k tokens are kept, even
where others tie with the last.
"""

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.numerics.blocks import BLOCK, as_blocks

NUCLEUS_GUESS = 512  # candidates tried before a nucleus is sought in the whole vocabulary


def candidates(logits_RV: Tensor, truncation: Truncation) -> tuple[Tensor, Tensor | None]:
    """Logits (R, K) of the proposal over its candidates (−inf outside) and their ids (R, K); None = all, in order."""
    scaled_RV = logits_RV if truncation.temperature == 1.0 else logits_RV / truncation.temperature
    if truncation.top_p is None or truncation.top_p == 1.0:
        return (scaled_RV, None) if truncation.top_k is None else top_k(scaled_RV, truncation.top_k)
    if truncation.top_k is not None:
        kept_RK, ids_RK = top_k(scaled_RV, truncation.top_k)
        return _nucleus(kept_RK, kept_RK.logsumexp(-1, keepdim=True), truncation.top_p)[0], ids_RK
    log_total_R1 = scaled_RV.logsumexp(-1, keepdim=True)
    kept_RK, ids_RK = top_k(scaled_RV, NUCLEUS_GUESS)
    nucleus_RK, complete = _nucleus(kept_RK, log_total_R1, truncation.top_p)
    if not complete:
        kept_RK, ids_RK = scaled_RV.sort(-1, descending=True)
        nucleus_RK, _ = _nucleus(kept_RK, log_total_R1, truncation.top_p)
    return nucleus_RK, ids_RK


def top_k(logits_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row, in descending order, and their ids."""
    rows, vocabulary = logits_RV.shape
    k = min(k, vocabulary)
    if k * BLOCK >= vocabulary // 2:
        return logits_RV.topk(k)
    logits_RMB = as_blocks(logits_RV, fill=float("-inf"))
    blocks_RK = logits_RMB.amax(-1).topk(k, sorted=False).indices
    inside_RKB = logits_RMB[torch.arange(rows, device=logits_RV.device)[:, None], blocks_RK]
    values_RK, positions_RK = inside_RKB.reshape(rows, -1).topk(k)
    ids_RK = blocks_RK.gather(1, positions_RK // BLOCK) * BLOCK + positions_RK % BLOCK
    return values_RK, ids_RK


def _nucleus(descending_RK: Tensor, log_total_R1: Tensor, top_p: float) -> tuple[Tensor, bool]:
    """−inf for tokens whose predecessors already hold `top_p`; whether the candidates given held the whole nucleus."""
    probability_RK = (descending_RK - log_total_R1).double().exp()
    cumulative_RK = probability_RK.cumsum(-1)
    outside_RK = cumulative_RK - probability_RK >= top_p
    complete = bool((cumulative_RK[:, -1] >= top_p).all())
    return descending_RK.masked_fill(outside_RK, float("-inf")), complete
