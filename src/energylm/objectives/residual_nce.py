"""Conditional noise-contrastive estimation of a residual energy.

    L = softplus(E(x+)) + (1/K) Σ_k softplus(−E(x−_k))                Deng et al. 2020, eq. 3

x+ is real text, x−_k are K continuations of the same context drawn from the language model the energy corrects,
untruncated and at temperature 1. At the minimum −E(x) = log P_data(x) − log P_LM(x): the joint model is the data's
distribution and log Z is 0. The negatives are averaged: a sum over K would shift E by log K.

Use it     when the energy is to weigh the language model's text (perplexity, joint sampling).
Relations  the ranking loss needs no absolute zero and gives no log-ratio; ELECTRA's loss classifies single tokens.
"""

from torch import Tensor
from torch.nn.functional import softplus


def residual_nce(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) the loss of each context with its real continuation and its K negatives."""
    return softplus(real_energy_B) + softplus(-noise_energy_BK).mean(-1)
