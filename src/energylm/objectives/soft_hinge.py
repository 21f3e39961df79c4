"""Structured hinge over a cost-augmented soft beam.

    L = max(0, s_max − s(y*)),   s_max = softmax(α s) · s             goyal2021 §4.4

s are the scores of a soft beam whose every symbol had its cost added: the search looks for what is wrong and yet scores
high. s(y*) is the gold sequence's own score, under the same normalisation. Since the search is not exact, the loss can
be lowered by making wrong sequences hard to find (§4.6): on named entities it ends below cross-entropy.

Use it     to compare with `direct_loss`, which pays for the answer and nothing else.
"""

from torch import Tensor

from energylm.numerics.relaxations import soft_argmax


def soft_hinge(augmented_scores_BK: Tensor, gold_score_B: Tensor, *, alpha: float | Tensor) -> Tensor:
    """(B,) by how much the worst offender outscores the gold sequence, at least 0."""
    highest_B = (soft_argmax(augmented_scores_BK, alpha=alpha) * augmented_scores_BK).sum(-1)
    return (highest_B - gold_score_B).clamp(min=0.0)
