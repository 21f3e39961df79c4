"""Cross-entropy of next-token predictions: the negative log-likelihood of a normalised language model.

    L = − Σ_b Σ_t log softmax(logits_bt)[target_bt]                nats, over the positions that count

Use it     to train or to validate any model that gives a distribution over the vocabulary at each position.
Relations  dividing by the count gives nats per token, exp of that the perplexity. Sum and count are returned apart, so
           that micro-batches, processes and validation batches add up before anyone divides: a mean of means weighs
           tokens of short batches more than others.
"""

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # the target of a position that does not count (padding), torch's own convention


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The summed negative log-likelihood (), in float32 at least; targets of `IGNORED` add nothing."""
    # float16 and bfloat16 sums over thousands of tokens lose digits; float32 and float64 pass through without a copy.
    logits = logits_BTV.float() if logits_BTV.element_size() < 4 else logits_BTV
    return F.cross_entropy(logits.flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def count_targets(targets_BT: Tensor) -> int:
    """How many positions count."""
    return int((targets_BT != IGNORED).sum())
