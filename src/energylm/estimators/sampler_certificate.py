"""A bound on the log-density of what importance resampling really generates, for every n.

The sampler (draw n continuations from the language model, keep one with probability w_i / Σ w, w = exp(−E)) is itself
a normalised model of text: x leaves it if it is one of the n draws (n ways, P_LM(x) each) and is kept,

    q_n(x) = n P_LM(x) E[w(x) / (w(x) + Σ_{i=2..n} w_i)] = E[P_LM(x) w(x) / Y],   Y = (1/n) (w(x) + Σ_{i=2..n} w_i),

w_i of fresh draws. So each of n draws, left out in turn, gives an unbiased estimate exp(L_i) = P_LM(x) w(x) / Y_i of
the density, and the mean L of the L_i over a pool, a geometric mean of such estimates, has E[exp L] ≤ q_n(x).

In expectation      E[L] ≤ log q_n(x) (Jensen; Lawson et al. 2019), for every n: the perplexity that belongs to L is
                    too high on average. A single run may give too low a one: where large weights are rare, most pools
                    hold none of them.
With confidence     B texts with pools of their own: Π_b exp(L_b) / q_n(x_b) is never negative and 1 or less on average,
                    so by Markov's inequality

                        Pr( Σ_b L_b − log(1/δ) > Σ_b log q_n(x_b) ) ≤ δ

                    over pools, for these texts, for every n and every energy, however heavy the tail of its weights.
                    The price is log(1/δ) nats for all texts together.
Over texts          the standard error is over texts, each of which has a pool of its own, so that it holds the scatter
                    of both; it speaks of other texts, and for many texts only.

At n = 1 it is P_LM(x) itself; as n grows it tends to the joint model's density. Of sequential Monte Carlo the same is
true with log q_SMC(x) ≥ E[log γ(x) − log Ẑ], Ẑ that of a run which retains x (`samplers.sequential_monte_carlo`).

Two samplers of a pool tell how far their law lies from the target in total variation, which the same pool estimates
(too low where it holds none of the largest weights):

    quasi-rejection    TV(π, p_β) ≤ 1 − Z_β / Z,  Z_β = E[min(w, β)]: where β cuts nothing off, 0
    independence       TV(π, law after n draws) ≤ (1 − Z / max w)^(n − 1)                       Mengersen & Tweedie 1996

Relations  `log_partition` brackets the joint model's log Z when n is large; `samplers.resampling` samples.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from energylm.config.sampling import CONFIDENCE
from energylm.errors import ConfigError
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.numerics.importance import leave_one_out_log_sum, log_mean_exp


@dataclass(frozen=True)
class CertifiedPerplexity(PerplexityEstimate):
    """Of the sampler. `value` is an upper bound in expectation over pools; `bound` is one with `confidence`."""

    confidence: float
    bound: float
    bound_bits_per_byte: float | None

    @property
    def level(self) -> str:
        """The confidence in words: 95 %."""
        return f"{100 * self.confidence:g} %"


def sampler_log_normalizer(log_weight_B: Tensor, log_weight_BN: Tensor) -> Tensor:
    """(B,) unbiased estimates of E[log (1/n)(w(x) + Σ_{i=2..n} w_i)] for text of log-weight −E(x), from a pool of n."""
    log_weight_B1, log_weight_BN = log_weight_B.double()[:, None], log_weight_BN.double()
    n = log_weight_BN.shape[1]
    companions_BN = leave_one_out_log_sum(log_weight_BN) if n > 1 else torch.full_like(log_weight_BN, float("-inf"))
    return torch.logaddexp(log_weight_B1, companions_BN).mean(-1) - math.log(n)


def certified_log_prob(lm_log_prob_B: Tensor, log_weight_B: Tensor, log_weight_BN: Tensor) -> Tensor:
    """(B,) lower bounds L (in expectation over the pool) on the sampler's log-density of each text."""
    return lm_log_prob_B.double() + log_weight_B.double() - sampler_log_normalizer(log_weight_B, log_weight_BN)


def certified_perplexity(
    certified_log_prob_B: Tensor,
    tokens_B: Tensor,
    bytes_B: Tensor | None = None,
    *,
    convention: str,
    confidence: float = CONFIDENCE,
) -> CertifiedPerplexity:
    """The sampler's perplexity from `certified_log_prob` of B texts, whose pools are independent of each other."""
    if not 0 < confidence < 1:
        raise ConfigError(f"the confidence of a bound lies between 0 and 1, came {confidence}; 0.95 is usual")
    measured = perplexity(certified_log_prob_B, tokens_B, bytes_B, convention=convention)
    share = math.log(1 - confidence) / len(certified_log_prob_B)  # of log δ: only the total over texts matters
    bound = perplexity(certified_log_prob_B.double() + share, tokens_B, bytes_B, convention=convention)
    return CertifiedPerplexity(
        **asdict(measured), confidence=confidence, bound=bound.value, bound_bits_per_byte=bound.bits_per_byte
    )


def quasi_rejection_distance(log_weight_BN: Tensor, log_bound_B: Tensor) -> Tensor:
    """(B,) estimates of 1 − Z_β / Z from draws that β does not depend on."""
    log_cut_BN = torch.minimum(log_weight_BN.double(), log_bound_B.double()[:, None])
    return -torch.expm1(log_mean_exp(log_cut_BN) - log_mean_exp(log_weight_BN.double()))


def quasi_rejection_bound(log_weight_BN: Tensor, *, distance: float) -> Tensor:
    """(B,) the smallest log β whose estimated distance is at most `distance`, so that most draws are accepted.

    Σ min(w_i, β) grows with β, linearly between neighbouring weights; the β at which it reaches (1 − distance) Σ w_i
    lies after the last weight w_(k) with Σ_{i ≤ k} w_(i) + (n − k) w_(k) still below.
    """
    log_weight_BN = log_weight_BN.double().sort(1).values
    largest_B1 = log_weight_BN[:, -1:]
    weight_BN = (log_weight_BN - largest_B1).exp()
    n, wanted_B1 = weight_BN.shape[1], (1 - distance) * weight_BN.sum(1, keepdim=True)
    below_BN = weight_BN.cumsum(1)
    above_N = torch.arange(n - 1, -1, -1, dtype=torch.float64, device=weight_BN.device)  # weights after each
    cut_BN = below_BN + above_N * weight_BN
    first_B1 = (cut_BN < wanted_B1).sum(1, keepdim=True).clamp(max=n - 1)  # the first weight that is large enough as β
    smaller_B1 = torch.where(first_B1 > 0, below_BN.gather(1, (first_B1 - 1).clamp(min=0)), 0.0)
    return (((wanted_B1 - smaller_B1) / (n - first_B1)).log() + largest_B1)[:, 0]


def independence_distance(log_weight_BN: Tensor, *, draws: int) -> Tensor:
    """(B,) estimates of (1 − Z / max w)^(draws − 1), a chain of so many draws being started at the first."""
    log_weight_BN = log_weight_BN.double()
    share_B = (log_mean_exp(log_weight_BN) - log_weight_BN.amax(-1)).exp()
    return (1 - share_B).clamp(min=0.0) ** (draws - 1)
