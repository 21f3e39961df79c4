"""Losses of a residual energy over n-best lists: the recogniser's score is the base model, the list its support.

    s_h = f_h − E(h)             P(h | list) = exp(s_h) / Σ_j exp(s_j)           c_h: errors of h, B the hypotheses of
                                                                                 the list with the fewest errors
    nce              L = −log Σ_{h∈B} P(h | list)                                conditional (ranking) NCE
    most-offending   L = max(0, m + max_{h∉B} s_h − max_{h∈B} s_h)               margin against the worst rival
    expected-error   L = Σ_h P(h | list) · (c_h − min_j c_j)                     minimum word error rate

nce              Noise-contrastive estimation with the rest of the list as noise (Ma & Collins 2018, whose −log q of a
                 negative is left out: a list holds the recogniser's best, not draws from it). Use it when the posterior
                 itself is wanted, as minimum-risk choice does.
most-offending   Bakhtin et al. 2019, eq. 2, with f in the comparison. Use it when only the first place matters.
expected-error   Prabhavalkar et al. 2018; with 1 − BLEU or 1 − chrF as the cost it is minimum-risk training (Shen et
                 al. 2016). Subtracting the least cost changes no gradient; L is then the errors above the oracle's.

                 ∂L/∂E(h) = P(h) · (L − (c_h − min c))                           lower the energy where errors are few

A list whose hypotheses all have the same errors teaches nothing and counts 0. What is not there has f = −∞. Only the
differences within a list enter, so E has no absolute zero.

Relations  `residual_energy` contrasts single real texts with drawn ones; `estimators.weight_tuning` chooses by s.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from energylm.config.cloze import ListObjective

ListLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
PAPER_MARGIN = 1.0


def list_nce(base_UH: Tensor, energy_UH: Tensor, cost_UH: Tensor) -> Tensor:
    """(U,) the loss of each list."""
    log_posterior_UH = list_log_posterior(base_UH, energy_UH)
    best_UH = best_members(base_UH, cost_UH)
    loss_U = -log_posterior_UH.masked_fill(~best_UH, -torch.inf).logsumexp(-1)
    return loss_U.where(teaches(base_UH, cost_UH), 0.0)


def list_most_offending(base_UH: Tensor, energy_UH: Tensor, cost_UH: Tensor, *, margin: float = PAPER_MARGIN) -> Tensor:
    """(U,) the loss of each list."""
    best_UH, exists_UH = best_members(base_UH, cost_UH), base_UH.isfinite()
    score_UH = base_UH - energy_UH
    right_U = score_UH.masked_fill(~best_UH, -torch.inf).amax(-1)
    rival_U = score_UH.masked_fill(best_UH | ~exists_UH, -torch.inf).amax(-1)
    is_used_U = teaches(base_UH, cost_UH)
    gap_U = (rival_U - right_U).where(is_used_U, 0.0)  # −∞ − s has no gradient that is a number
    return (margin + gap_U).clamp(min=0.0).where(is_used_U, 0.0)


def expected_error(base_UH: Tensor, energy_UH: Tensor, cost_UH: Tensor) -> Tensor:
    """(U,) the loss of each list: errors above its oracle's."""
    exists_UH = base_UH.isfinite()
    least_U1 = cost_UH.masked_fill(~exists_UH, torch.inf).amin(-1, keepdim=True)
    excess_UH = (cost_UH - least_U1).where(exists_UH, 0.0)
    return (list_log_posterior(base_UH, energy_UH).exp() * excess_UH).sum(-1)


def list_log_posterior(base_UH: Tensor, energy_UH: Tensor) -> Tensor:
    """(U, H) log P(h | list); −∞ for what is not there."""
    exists_UH = base_UH.isfinite()
    score_UH = torch.where(exists_UH, base_UH, 0.0) - energy_UH
    return score_UH.masked_fill(~exists_UH, -torch.inf).log_softmax(-1)


def best_members(base_UH: Tensor, cost_UH: Tensor) -> Tensor:
    """(U, H) true for the hypotheses with the lowest cost of their list."""
    exists_UH = base_UH.isfinite()
    cost_UH = cost_UH.masked_fill(~exists_UH, torch.inf)
    return (cost_UH == cost_UH.amin(-1, keepdim=True)) & exists_UH


def teaches(base_UH: Tensor, cost_UH: Tensor) -> Tensor:
    """(U,) true for lists in which some hypothesis is better than another."""
    return (base_UH.isfinite() & ~best_members(base_UH, cost_UH)).any(-1)


LIST_LOSSES: dict[ListObjective, ListLoss] = {
    "nce": list_nce,
    "most-offending": list_most_offending,
    "expected-error": expected_error,
}
