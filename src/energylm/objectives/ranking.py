"""Ranking: real text is to lie lower than the most offending negative of its own context, by a margin.

    L = max(0, m + E(x+) − E(x−_i)),  i = argmin_k E(x−_k)                           Bakhtin et al. 2019, eq. 2
    P@1 = share of contexts whose real text has the lowest energy of all             appendix C

Eq. 2 has m = 1; figure 3 draws a margin of 0.1. The hinge of the lowest negative is the highest hinge of all K, so with
L = 0 the real text beats every one of them by m.

Use it     where only the order within a context matters: the loss sees differences, so E has no absolute zero, and an
           accuracy at threshold 0 means nothing before a calibration on held-out contexts.
Relations  `most_offending` asks for E(x+) < 0 < E(x−) whatever the context; `residual_nce` gives log-ratios.
"""

from torch import Tensor

from energylm.objectives.most_offending import offending_energy

PAPER_MARGIN = 1.0


def ranking(real_energy_B: Tensor, noise_energy_BK: Tensor, *, margin: float = PAPER_MARGIN) -> Tensor:
    """(B,) the loss of each context with its real continuation and its K negatives."""
    return (margin + real_energy_B - offending_energy(noise_energy_BK)).clamp(min=0.0)


def precision_at_1(real_energy_B: Tensor, noise_energy_BK: Tensor) -> Tensor:
    """(B,) 1 where the real text has a lower energy than each of its negatives, else 0; a tie is no win."""
    return (real_energy_B < noise_energy_BK.amin(-1)).to(real_energy_B.dtype)
