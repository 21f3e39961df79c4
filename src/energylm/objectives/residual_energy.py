"""Losses of an energy that judges real text against K texts of a language model, one value a context.

    nce             L = softplus(E(x+)) + (1/K) Σ_k softplus(−E(x−_k))                   Deng et al. 2020, eq. 3
    most-offending  L = softplus(E(x+)) + softplus(−E(x−_i)),  i = argmin_k E(x−_k)      Bakhtin et al. 2019, eq. 1
    ranking         L = max(0, m + E(x+) − E(x−_i)),           i = argmin_k E(x−_k)      Bakhtin et al. 2019, eq. 2
    P@1             share of contexts whose real text has the lowest energy of all       appendix C

x+ is real text, x−_k are K continuations of the same context.

nce             Its negatives are drawn from the language model that the energy corrects, untruncated and at temperature
                1. At the minimum −E(x) = log P_data(x) − log P_LM(x): the joint model is the data's distribution and
                log Z is 0. The negatives are averaged: a sum over K would shift E by log K. Use it when the energy is
                to weigh the language model's text (perplexity, joint sampling).
most-offending  Eq. 1 is printed with + log σ(−E(x−)), which is unbounded below; the cross-entropy is −log σ(E(x−)) =
                softplus(−E(x−)). Only the chosen negative gets a gradient; among equals it is the first. Use it to
                discriminate: more and harder negatives help (table 7). K = 1 is nce with one negative. It gives no
                log-ratios, since the lowest of K draws is no draw from the language model.
ranking         Eq. 2 has m = 1; figure 3 draws a margin of 0.1. The hinge of the lowest negative is the highest hinge
                of all K, so with L = 0 the real text beats every one of them by m. Use it where only the order within a
                context matters: the loss sees differences, so E has no absolute zero, and an accuracy at threshold 0
                means nothing before a calibration on held-out contexts.

Relations  `registry.LOSSES` names them for `energylm energy train --objective`; `noised_tokens` judges single tokens.
"""

from torch import Tensor
from torch.nn.functional import softplus


def residual_nce(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) the loss of each context with its real continuation and its K negatives."""
    return softplus(real_energy_B) + softplus(-noise_energy_BK).mean(-1)


def most_offending(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) the loss of each context with its real continuation and the worst of its K negatives."""
    return softplus(real_energy_B) + softplus(-offending_energy(noise_energy_BK))


def offending_energy(noise_energy_BK: Tensor) -> Tensor:
    """(B,) the energy of the most offending negative of each context."""
    return noise_energy_BK.gather(-1, offending_index(noise_energy_BK)[..., None])[..., 0]


def offending_index(noise_energy_BK: Tensor) -> Tensor:
    """(B,) which negative has the lowest energy."""
    return noise_energy_BK.argmin(-1)


PAPER_MARGIN = 1.0


def ranking(real_energy_B: Tensor, noise_energy_BK: Tensor, *, margin: float = PAPER_MARGIN) -> Tensor:
    """(B,) the loss of each context with its real continuation and its K negatives."""
    return (margin + real_energy_B - offending_energy(noise_energy_BK)).clamp(min=0.0)


def precision_at_1(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) 1 where the real text has a lower energy than each of its negatives, else 0; a tie is no win."""
    return (real_energy_B < noise_energy_BK.amin(-1)).to(real_energy_B.dtype)
