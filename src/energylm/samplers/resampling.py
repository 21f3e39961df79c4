"""Choosing from a pool of n weighted draws: importance resampling, rejection, quasi-rejection, independence chains.

The pool holds draws x_i ~ q with weights w_i = w(x_i); the target is π = q · w / Z.

    resampling        P(keep i) = w_i / Σ_j w_j                                            law tends to π as n grows
                                                       Deng et al. 2020, algorithm 1 (w_i = exp(−E(x_i)))
    rejection         accept x_i with probability w_i / β, where β ≥ w(x) for every x      law: π, exactly
    quasi-rejection   accept x_i with probability min(1, w_i / β)                          law: p_β ∝ q · min(w, β)
                                                                                           (Eikema et al. 2022)
    independence      from x go to x_i with probability min(1, w_i / w(x))                 π is stationary

With a truncated proposal q two kinds of weights are worth having, and they aim at different targets:

    paper        w = exp(−E)              target ∝ q · exp(−E)        the paper's choice, low variance
    corrected    w = (P_LM / q) exp(−E)   target ∝ P_LM · exp(−E) on q's support        variance grows with length

A `power` α sharpens what is multiplied with exp(−E): q^α in the first, P_LM^α in the second; 1 changes nothing.

Resampling several draws without replacement gives distinct ones, but only the first has algorithm 1's law, and draws
from one pool are dependent either way. Accepted draws are independent of each other; how many there are is random. β
must not depend on the draws that it judges: whoever estimates it does so from other draws.

Use it     rejection where the energy is bounded, so that its lowest value is known; quasi-rejection where it is not,
           with `estimators.sampler_certificate.quasi_rejection_distance` for how far p_β lies from π; a chain where too
           few draws would be accepted; resampling else.
Relations  `continuations` makes the pool; `numerics.importance` says what it is worth (ESS); `suffix_metropolis`
           proposes the end of a text anew.
"""

from typing import Literal

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.errors import ConfigError, TooFewAccepted

Weights = Literal["paper", "corrected"]
_ROUNDING = 1e-9  # a weight that reaches its bound may be computed as a little more


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


def accept_draws(log_weight_BN: Tensor, choices: Choices, *, log_bound_B: Tensor) -> Tensor:
    """(B, N) bool: each draw accepted with probability min(1, w / β), log β = `log_bound_B`."""
    columns = [choices.accept(log_weight_B - log_bound_B) for log_weight_B in log_weight_BN.unbind(1)]
    return torch.stack(columns, dim=1)


def check_bound(log_weight_BN: Tensor, log_bound_B: Tensor) -> None:
    """Rejection is exact for a true bound only; a draw above it proves that it is none."""
    above_B = (log_weight_BN.amax(1) - log_bound_B).max()
    if above_B > _ROUNDING:
        raise ConfigError(
            f"a candidate's log-weight lies {float(above_B):.3g} above the bound, which is therefore none: rejection "
            "would not be exact; raise the bound, or take sampler quasi-rejection"
        )


def first_accepted(accepted_BN: Tensor, *, draws: int) -> list[list[int]]:
    """The first `draws` accepted ones of each context, in order: independent draws of the sampler's law."""
    kept: list[list[int]] = [row.nonzero()[:draws, 0].tolist() for row in accepted_BN]
    fewest, n = min(map(len, kept)), accepted_BN.shape[1]
    if fewest < draws:
        raise TooFewAccepted(
            f"of {n:,} candidates {fewest or 'none'} {'was' if fewest < 2 else 'were'} accepted, but {draws} shall be "
            "kept; draw more candidates, lower the bound (quasi-rejection), or take sampler independence or smc"
        )
    return kept


def independence_step(log_weight_R: Tensor, proposed_log_weight_R: Tensor, choices: Choices) -> Tensor:
    """(R,) bool: whether each chain goes to its proposal, an independent draw of q. A forbidden state (weight 0) is
    left at once."""
    log_ratio_R = torch.where(log_weight_R == float("-inf"), 0.0, proposed_log_weight_R - log_weight_R)
    return choices.accept(log_ratio_R)


def independence_chains(log_weight_RN: Tensor, choices: Choices) -> Tensor:
    """(R, N): which of its draws each chain stands at after each of them; it starts at the first."""
    at_R = torch.zeros(len(log_weight_RN), dtype=torch.int64)
    visited = [at_R]
    for index in range(1, log_weight_RN.shape[1]):
        now_R = log_weight_RN.gather(1, at_R[:, None])[:, 0]
        at_R = torch.where(independence_step(now_R, log_weight_RN[:, index], choices), index, at_R)
        visited.append(at_R)
    return torch.stack(visited, dim=1)
