"""Draws of a pool accepted or refused one after the other: rejection, quasi-rejection, independence chains.

The pool holds n draws x_i ~ q with weights w_i = w(x_i); the target is π = q · w / Z. All three read them in order.

    rejection         accept x_i with probability w_i / β, where β ≥ w(x) for every x      law: π, exactly
    quasi-rejection   accept x_i with probability min(1, w_i / β)                          law: p_β ∝ q · min(w, β)
                                                                                           (Eikema et al. 2022)
    independence      from x go to x_i with probability min(1, w_i / w(x))                 π is stationary

β must not depend on the draws that it judges: whoever estimates it does so from other draws. Accepted draws are
independent of each other, unlike several draws that `resampling` keeps of one pool; how many there are is random.

Use it     rejection where the energy is bounded, so that its lowest value is known; quasi-rejection where it is not,
           with `estimators.sampler_certificate.quasi_rejection_distance` for how far p_β lies from π; a chain where too
           few draws would be accepted.
Relations  `resampling` keeps one of all draws by its share; `suffix_metropolis` proposes the end of a text anew.
"""

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.errors import ConfigError

_ROUNDING = 1e-9  # a weight that reaches its bound may be computed as a little more


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
        raise ConfigError(
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
