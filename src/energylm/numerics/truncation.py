"""Truncated proposals: temperature, then top-k, then top-p, as candidates of each row.

    q(v) ∝ exp(l_v / τ) · 1[v among the k likeliest] · 1[v in the smallest set of likeliest with mass ≥ p]

Among equally likely tokens the smaller id is the likelier, so exactly k are kept, and always the same. A mass within
one millionth of p has reached it: 8 of 20 equal tokens hold 0.4, whatever the rounding of their sum.

The k likeliest tokens lie in the k blocks with the largest maxima, so `top_k` looks for blocks first and sorts only the
k·64 logits inside them, which `torch.topk` does at a fraction of the cost of a whole row. That leaves open which of
equals come first; one more logit shows whether there are any, and only rows that have some are put in order by id.

Relations  `testing.exact` states the same rule in plain Python; the two share no code, so each checks the other.
"""

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.numerics.categorical import as_blocks, log_sum_exp
from energylm.numerics.kernels import BLOCK

NUCLEUS_GUESS = 512  # candidates tried before a nucleus is sought in the whole vocabulary
MASS_TOLERANCE = 1e-6  # of a nucleus, relative to p: what float32 sums of probabilities may lack


def candidates(logits_RV: Tensor, truncation: Truncation) -> tuple[Tensor, Tensor | None]:
    """Logits (R, K) of the proposal over its candidates (−inf outside) and their ids (R, K); None = all, in order."""
    scaled_RV = logits_RV if truncation.temperature == 1.0 else logits_RV / truncation.temperature
    if truncation.top_p is None or truncation.top_p == 1.0:
        return (scaled_RV, None) if truncation.top_k is None else top_k(scaled_RV, truncation.top_k)
    if truncation.top_k is not None:
        kept_RK, ids_RK = top_k(scaled_RV, truncation.top_k)
        return _nucleus(kept_RK, log_sum_exp(kept_RK, kept_RK[:, :1])[:, None], truncation.top_p)[0], ids_RK
    kept_RK, ids_RK = top_k(scaled_RV, NUCLEUS_GUESS)
    log_total_R1 = log_sum_exp(scaled_RV, kept_RK[:, :1])[:, None]
    nucleus_RK, complete = _nucleus(kept_RK, log_total_R1, truncation.top_p)
    if not complete:
        kept_RK, ids_RK = scaled_RV.sort(dim=-1, descending=True, stable=True)
        nucleus_RK, _ = _nucleus(kept_RK, log_total_R1, truncation.top_p)
    return nucleus_RK, ids_RK


def top_k(logits_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row, in descending order, and their ids; of equals the smaller id comes first."""
    k = min(k, logits_RV.shape[1])
    values_RK, ids_RK = _largest(logits_RV, min(k + 1, logits_RV.shape[1]))
    equal_RK = (values_RK[:, 1:] == values_RK[:, :-1]) & (values_RK[:, 1:] > float("-inf"))
    values_RK, ids_RK = values_RK[:, :k], ids_RK[:, :k]
    rows_E = (equal_RK.any(1) & ~values_RK[:, 0].isnan()).nonzero()[:, 0]  # NaN, which has no order, comes first
    if len(rows_E):
        ids_RK[rows_E] = _ids_in_order(logits_RV[rows_E], values_RK[rows_E, -1:], k)
    return values_RK, ids_RK


def _largest(logits_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row, in descending order, and the ids of k tokens that have them."""
    rows, vocabulary = logits_RV.shape
    if k * BLOCK >= vocabulary // 2:
        return logits_RV.topk(k)
    logits_RMB = as_blocks(logits_RV, fill=float("-inf"))
    blocks_RK = logits_RMB.amax(-1).topk(k, sorted=False).indices
    inside_RKB = logits_RMB[torch.arange(rows, device=logits_RV.device)[:, None], blocks_RK]
    values_RK, positions_RK = inside_RKB.reshape(rows, -1).topk(k)
    ids_RK = blocks_RK.gather(1, positions_RK // BLOCK) * BLOCK + positions_RK % BLOCK
    return values_RK, ids_RK


def _ids_in_order(logits_RV: Tensor, least_R1: Tensor, k: int) -> Tensor:
    """(R, K) ids of the k largest logits, `least_R1` the last of them; descending, of equals the smaller id first."""
    above_RV, equal_RV = logits_RV > least_R1, logits_RV == least_R1
    left_R1 = k - above_RV.sum(-1, keepdim=True)
    kept_RV = above_RV | (equal_RV & (equal_RV.cumsum(-1) <= left_R1))
    ids_RK = kept_RV.nonzero()[:, 1].view(-1, k)
    return ids_RK.gather(1, logits_RV.gather(1, ids_RK).argsort(dim=-1, descending=True, stable=True))


def _nucleus(descending_RK: Tensor, log_total_R1: Tensor, top_p: float) -> tuple[Tensor, bool]:
    """−inf for tokens whose predecessors already hold `top_p`; whether the candidates given held the whole nucleus."""
    enough = top_p * (1 - MASS_TOLERANCE)
    probability_RK = (descending_RK.to(log_total_R1.dtype) - log_total_R1).exp()
    cumulative_RK = probability_RK.cumsum(-1)
    outside_RK = cumulative_RK - probability_RK >= enough
    complete = bool((cumulative_RK[:, -1] >= enough).all())
    return descending_RK.masked_fill(outside_RK, float("-inf")), complete
