"""Smooth stand-ins for argmax, sampling and top-k argmax, peaked by α > 0; α → ∞ gives the hard ones (without ties).

    soft argmax     softmax(α s)                                             goyal2021 §3.3.2
    soft sample     softmax(α (s + G)),  G = −log(−log U)                    goyal2021 §3.3.2 (Gumbel, "concrete")
    soft top-k      p_i = softmax(−α (s − m_i)²),  m_i the i-th best of s    goyal2021 algorithm 2

`continuous_top_k` reads a matrix s (J elements × V symbols) and gives, for each of the k best, what algorithm 3 makes
of p_i: soft back-pointers (its row sums, over symbols), soft symbols (its column sums, over elements) and a soft score
Σ p_i s. The k matrices p_i are k²|V| numbers a sequence: they live only inside the call, and are computed again for the
gradient. The exponent's largest value is 0 (at m_i itself), so nothing overflows at any α; −inf marks a candidate that
cannot be chosen and gets no weight.

Use it     where a search must be differentiated. Soft equals hard where α·gap² ≫ 1 for every gap between scores.
Relations  `search.continuous_beam` steps it; `objectives.scheduled_sampling` feeds soft argmax and soft samples back.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from energylm.errors import ConfigError


@dataclass(frozen=True)
class SoftTopK:
    """The k best of (J, V) candidates, softly and as they are."""

    back_BKJ: Tensor  # soft back-pointers, each sums to 1
    symbol_BKV: Tensor  # soft symbols, each sums to 1
    score_BK: Tensor  # soft scores
    parent_BK: Tensor  # the hard choice, int64: the largest entry of each p_i
    choice_BK: Tensor  # its symbol


def soft_argmax(scores_V: Tensor, *, alpha: float | Tensor) -> Tensor:
    """Weights (…, V) that approach a one-hot of the largest score as α grows."""
    return (checked_alpha(alpha) * scores_V).softmax(-1)


def soft_sample(scores_V: Tensor, gumbel_V: Tensor, *, alpha: float | Tensor) -> Tensor:
    """Weights (…, V) that approach a one-hot of a draw from softmax(scores) as α grows."""
    return soft_argmax(scores_V + gumbel_V, alpha=alpha)


def gumbel_noise(uniforms: Tensor) -> Tensor:
    """Standard Gumbel numbers from uniform ones in [0, 1)."""
    tiny = torch.finfo(uniforms.dtype).tiny
    return -(-uniforms.clamp(min=tiny).log()).clamp(min=tiny).log()


def continuous_top_k(scores_BJV: Tensor, *, k: int, alpha: float | Tensor) -> SoftTopK:
    """Algorithm 2 with the sums of algorithm 3, lines 9 to 13, for all k best at once."""
    if k > scores_BJV[0].numel():
        raise ConfigError(
            f"a soft beam of {k} is wider than the {scores_BJV[0].numel()} candidates of a step; take a narrower beam"
        )
    back_BKJ, symbol_BKV, score_BK, index_BK = _ContinuousTopK.apply(  # type: ignore[no-untyped-call]
        scores_BJV, k, checked_alpha(alpha)
    )
    vocabulary = scores_BJV.shape[-1]
    return SoftTopK(back_BKJ, symbol_BKV, score_BK, index_BK // vocabulary, index_BK % vocabulary)


def checked_alpha(alpha: float | Tensor) -> float:
    """α as a number; an α that is not positive peaks nothing and is refused."""
    value = float(alpha)
    if not 0 < value < float("inf"):
        raise ConfigError(f"α came as {value}; a relaxation needs a finite α above 0")
    return value


class _ContinuousTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_BJV: Tensor, k: int, alpha: float) -> tuple[Tensor, ...]:
        best_BK, index_BK = scores_BJV.flatten(1).topk(k)
        if bool(best_BK.isneginf().any()):
            raise ConfigError(
                f"a soft beam of {k} is wider than the candidates that a step allows; take a narrower one"
            )
        finite_BJV = _finite(scores_BJV)
        weight_BKJV = _weights(scores_BJV, best_BK, alpha)
        row_BKJ = weight_BKJV.sum(-1)
        total_BK = row_BKJ.sum(-1)
        back_BKJ = row_BKJ / total_BK[..., None]
        symbol_BKV = weight_BKJV.sum(2).div_(total_BK[..., None])
        score_BK = torch.bmm(weight_BKJV.flatten(2), finite_BJV.flatten(1)[..., None])[..., 0] / total_BK
        ctx.alpha = alpha
        ctx.save_for_backward(scores_BJV, best_BK, index_BK, total_BK, back_BKJ, symbol_BKV, score_BK)
        ctx.mark_non_differentiable(index_BK)
        return back_BKJ, symbol_BKV, score_BK, index_BK

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_back_BKJ: Tensor, grad_symbol_BKV: Tensor, grad_score_BK: Tensor, _: Tensor
    ) -> tuple[Tensor, None, None]:
        """With p = softmax(l), l = −α x², x = s − m and G the gradient of p:   dl = p (G − ⟨p, G⟩)

        ds = Σ_i (g_i p_i − 2α x_i dl_i),   dm_i = 2α Σ x_i dl_i, which belongs to the i-th best score itself.
        """
        scores_BJV, best_BK, index_BK, total_BK, back_BKJ, symbol_BKV, score_BK = ctx.saved_tensors
        finite_BJV = _finite(scores_BJV)
        p_BKJV = _weights(scores_BJV, best_BK, ctx.alpha).div_(total_BK[..., None, None])
        mean_BK = (  # ⟨p_i, G_i⟩ from the sums that are there already
            (grad_back_BKJ * back_BKJ).sum(-1) + (grad_symbol_BKV * symbol_BKV).sum(-1) + grad_score_BK * score_BK
        )
        pull_BKJV = grad_symbol_BKV[:, :, None, :] + (grad_back_BKJ - mean_BK[..., None])[..., None]
        pull_BKJV.addcmul_(grad_score_BK[..., None, None], finite_BJV[:, None])
        pull_BKJV.mul_(finite_BJV[:, None] - best_BK[..., None, None]).mul_(p_BKJV)  # x·dl
        direct_BM = torch.bmm(grad_score_BK[:, None, :], p_BKJV.flatten(2))[:, 0]
        grad_BM = direct_BM.sub_(pull_BKJV.sum(1).flatten(1), alpha=2 * ctx.alpha)
        grad_BM.scatter_add_(1, index_BK, 2 * ctx.alpha * pull_BKJV.sum((2, 3)))
        return grad_BM.view_as(scores_BJV), None, None


def _weights(scores_BJV: Tensor, best_BK: Tensor, alpha: float) -> Tensor:
    """(B, K, J, V) exp(−α (s − m_i)²), the softmaxes before they are divided by their sums; 0 for −inf."""
    difference_BKJV = scores_BJV[:, None] - best_BK[..., None, None]
    return difference_BKJV.square_().mul_(-alpha).exp_()


def _finite(scores_BJV: Tensor) -> Tensor:
    """0 in place of −inf, whose weight is 0: 0 · −inf would be NaN."""
    return scores_BJV.masked_fill(scores_BJV.isneginf(), 0.0)
