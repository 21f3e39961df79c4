"""Step-wise probabilities of a residual model by marginalising the future, as intervals.

    log P(x_t | x_<t) = log P_LM(x_t | x_<t) + log A_{t+1} − log A_t                    Deng et al. 2020, eq. 5
    A_t = E_{x'_t … x'_T ~ P_LM(· | x_<t)} [exp(−E(x_<t, x'_t … x'_T))],  A_{T+1} = exp(−E(x))

The numerator at t is the denominator at t + 1, so each A_t is estimated once and the steps telescope to
log P_LM(x) − E(x) − log A_1. Each log A_t lies between the two estimates of `log_partition`; the interval of a
difference crosses them: the lowest numerator with the highest denominator, and the other way round. At t = T the sum
over the vocabulary is exact (`last_step_log_prob`), which checks the estimators.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from energylm.estimators.log_partition import LogPartition


def stepwise_log_probs(
    lm_log_prob_BT: Tensor, log_weight_B: Tensor, futures: Sequence[LogPartition]
) -> tuple[Tensor, Tensor]:
    """Lower and upper (B, T) log-probabilities. `futures[t]` estimates log A_t given x_<t; log_weight is −E(x)."""
    exact_B = log_weight_B.double()
    lower, upper = [], []
    for t, now in enumerate(futures):
        after = futures[t + 1] if t + 1 < len(futures) else None
        step_B = lm_log_prob_BT[:, t].double()
        lower.append(step_B + (exact_B if after is None else after.lower) - now.upper)
        upper.append(step_B + (exact_B if after is None else after.upper) - now.lower)
    return torch.stack(lower, dim=1), torch.stack(upper, dim=1)


def last_step_log_prob(lm_log_prob_BV: Tensor, energy_BV: Tensor, token_B: Tensor) -> Tensor:
    """(B,) exact log P(x_T | x_<T) from the next-token distribution and the energy of every possible last token."""
    joint_BV = (lm_log_prob_BV.double() - energy_BV.double()).log_softmax(-1)
    return joint_BV.gather(1, token_B[:, None])[:, 0]
