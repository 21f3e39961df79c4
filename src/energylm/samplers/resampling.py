"""Importance resampling: keep one of n weighted draws, or several.

    P(keep i) = w_i / Σ_j w_j                                    Deng et al. 2020, algorithm 1 (w_i = exp(−E(x_i)))

As n grows, the kept draw's law tends to the density proportional to (proposal · w). With a truncated proposal q two
kinds of weights are worth having, and they aim at different targets:

    paper        w = exp(−E)              target ∝ q · exp(−E)        the paper's choice, low variance
    corrected    w = (P_LM / q) exp(−E)   target ∝ P_LM · exp(−E) on q's support        variance grows with length

A `power` α sharpens what is multiplied with exp(−E): q^α in the first, P_LM^α in the second; 1 changes nothing.

Several draws without replacement are distinct, but only the first has algorithm 1's law; draws from one pool are
dependent either way.

Relations  `continuations` makes the pool; `numerics.importance` says what it is worth (ESS).
"""

from typing import Literal

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.errors import ConfigError

Weights = Literal["paper", "corrected"]


def importance_log_weights(
    energy: Tensor, log_prob: Tensor, proposal_log_prob: Tensor, *, weights: Weights = "paper", power: float = 1.0
) -> Tensor:
    """log w of draws with these energies and log-probabilities under the model and under the proposal."""
    log_prob, proposal_log_prob, energy = log_prob.double(), proposal_log_prob.double(), energy.double()
    if weights == "paper":
        return -energy if power == 1 else (power - 1) * proposal_log_prob - energy
    return power * log_prob - proposal_log_prob - energy


def resample(log_weight_BN: Tensor, choices: Choices, *, draws: int = 1, replacement: bool = False) -> Tensor:
    """(B, draws) which of the n draws of each context are kept."""
    n = log_weight_BN.shape[1]
    if not replacement and draws > n:
        raise ConfigError(f"cannot keep {draws} different draws of {n}; draw more, keep fewer, or allow replacement")
    left_BN = log_weight_BN.clone()
    kept = []
    for number in range(draws):
        if (left_BN == float("-inf")).all(1).any():
            raise ConfigError(
                f"the energy allows {number or 'none'} of a context's {n:,} candidates, but {draws} shall be kept; "
                "draw more candidates, or loosen the constraint"
            )
        index_B = choices.categorical(left_BN)
        kept.append(index_B)
        if not replacement:
            left_BN.scatter_(1, index_B[:, None], float("-inf"))
    return torch.stack(kept, dim=1)
