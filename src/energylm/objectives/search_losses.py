"""Losses that train a model for the beam search which will decode it, and the costs that such a search carries along.

    direct     L = softmax(α s) · D                                        goyal2021 eq. 4.2, algorithm 3 line 19
    hinge      L = max(0, s_max − s(y*)),   s_max = softmax(α s) · s       goyal2021 §4.4

s and D are the scores and costs of the last elements of a soft beam (`search.continuous_beam`).

**Direct loss**, the cost of what a beam search would answer, made smooth. As α grows this becomes the cost of hard beam
search's answer, whatever that is worth as a function to descend: start smooth and raise α, from a model trained by
cross-entropy. It pays for the answer and nothing else.

**Hinge** over a cost-augmented soft beam, whose every symbol had its cost added: the search looks for what is wrong and
yet scores high. s(y*) is the gold sequence's own score, under the same normalisation. Since the search is not exact,
the loss can be lowered by making wrong sequences hard to find (§4.6): on named entities it ends below cross-entropy.

**Costs** are sums over positions, Σ_t d(y_t, y*_t), so that a search can carry them along.

    hamming           d = 1 where the symbol is not the gold one                       goyal2021 §4.3.3
    doubled-outside   … and 2 where "O" is written and the gold tag is not "O"         goyal2021 §4.5.1, for entities

Sequences are compared over the gold one's length, its EOS counted; one that ended earlier goes on with EOS there.
Measures of whole sequences (BLEU, F1, edit distance) are no such sums: they are refused, with Hamming as the stand-in.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.config.seq2seq import DOUBLED_OUTSIDE, HAMMING
from energylm.errors import ConfigError
from energylm.numerics.relaxations import soft_argmax


def soft_direct_loss(scores_BK: Tensor, costs_BK: Tensor, *, alpha: float | Tensor) -> Tensor:
    """(B,) the cost of each row's best element, softly chosen."""
    return (soft_argmax(scores_BK, alpha=alpha) * costs_BK).sum(-1)


def soft_hinge(augmented_scores_BK: Tensor, gold_score_B: Tensor, *, alpha: float | Tensor) -> Tensor:
    """(B,) by how much the worst offender outscores the gold sequence, at least 0."""
    highest_B = (soft_argmax(augmented_scores_BK, alpha=alpha) * augmented_scores_BK).sum(-1)
    return (highest_B - gold_score_B).clamp(min=0.0)


COSTS = (HAMMING, DOUBLED_OUTSIDE)
OUTSIDE = "O"
_OF_WHOLE_SEQUENCES = ("bleu", "f1", "chrf", "ter", "rouge", "wer", "edit-distance", "exact-match")

StepCost = Callable[[Tensor], Tensor]  # gold symbols (B,) -> the cost (B, V) of each symbol in their place


def step_cost(name: str, *, vocabulary_size: int, outside_id: int | None = None) -> StepCost:
    """The cost called `name`; `outside_id` is the tag "O" where there is one."""
    if name not in COSTS:
        known = ", ".join(COSTS)
        if name.lower() in _OF_WHOLE_SEQUENCES:
            raise ConfigError(
                f"cost {name!r} judges whole sequences and is no sum over positions, so no search can carry it along; "
                f"take one of: {known}"
            )
        raise ConfigError(f"unknown cost {name!r}; known: {known}")
    if name == HAMMING:
        return lambda gold_B: hamming(gold_B, vocabulary_size=vocabulary_size)
    if outside_id is None:
        raise ConfigError(f"cost {name!r} needs a tag {OUTSIDE!r}, and these outputs have none; take {HAMMING!r}")
    return lambda gold_B: doubled_outside(gold_B, vocabulary_size=vocabulary_size, outside_id=outside_id)


def hamming(gold_B: Tensor, *, vocabulary_size: int) -> Tensor:
    """(B, V) 1 everywhere but at the gold symbol."""
    return 1.0 - F.one_hot(gold_B, vocabulary_size).to(torch.get_default_dtype())


def doubled_outside(gold_B: Tensor, *, vocabulary_size: int, outside_id: int) -> Tensor:
    """(B, V) as Hamming, but 2 for "O" where the gold tag is another."""
    cost_BV = hamming(gold_B, vocabulary_size=vocabulary_size)
    cost_BV[:, outside_id] *= 2
    return cost_BV
