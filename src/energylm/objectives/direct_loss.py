"""The cost of what a beam search would answer, made smooth.

    L = softmax(α s) · D                                              goyal2021 eq. 4.2, algorithm 3 line 19

s and D are the scores and costs of the last elements of a soft beam. As α grows this becomes the cost of hard beam
search's answer, whatever that is worth as a function to descend: start smooth and raise α.

Use it     to train for the search and the cost that count; start from a model trained by cross-entropy.
Relations  `search.continuous_beam` gives s and D; `soft_hinge` pushes scores instead of costs.
"""

from torch import Tensor

from energylm.numerics.relaxations import soft_argmax


def soft_direct_loss(scores_BK: Tensor, costs_BK: Tensor, *, alpha: float | Tensor) -> Tensor:
    """(B,) the cost of each row's best element, softly chosen."""
    return (soft_argmax(scores_BK, alpha=alpha) * costs_BK).sum(-1)
