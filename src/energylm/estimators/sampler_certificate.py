"""A bound on the log-density of what importance resampling really generates, honest for every n.

The sampler (draw n continuations from the language model, keep one with probability w_i / Σ w, w = exp(−E)) is itself
a normalised model of text. Its density satisfies, by Jensen's inequality over the n − 1 companions of x,

    log q_n(x) ≥ log P_LM(x) − E(x) − E[log (1/n) (w(x) + Σ_{i=2..n} w_i)]    w_i of fresh draws; Lawson et al. 2019

so the perplexity it gives is an upper bound for the generated text, not an asymptotic estimate of the joint model's.
From a pool of n draws the expectation is estimated without bias by leaving out each draw in turn.

Derivation. x leaves the sampler if it is one of the n draws (n ways, P_LM(x) each) and is kept:
q_n(x) = n P_LM(x) E[w(x) / (w(x) + Σ_{i≥2} w_i)] = P_LM(x) w(x) E[1 / ((1/n)(w(x) + Σ_{i≥2} w_i))] ≥ the bound (log is
concave: log E[1/Y] ≥ −E[log Y]). At n = 1 it is P_LM(x) itself; as n grows it tends to the joint model's density.

Relations  `log_partition` brackets the joint model's log Z when n is large.
"""

import math

import torch
from torch import Tensor

from energylm.numerics.importance import leave_one_out_log_sum


def sampler_log_normalizer(log_weight_B: Tensor, log_weight_BN: Tensor) -> Tensor:
    """(B,) unbiased estimates of E[log (1/n)(w(x) + Σ_{i=2..n} w_i)] for text of log-weight −E(x), from a pool of n."""
    log_weight_B1, log_weight_BN = log_weight_B.double()[:, None], log_weight_BN.double()
    n = log_weight_BN.shape[1]
    companions_BN = leave_one_out_log_sum(log_weight_BN) if n > 1 else torch.full_like(log_weight_BN, float("-inf"))
    return torch.logaddexp(log_weight_B1, companions_BN).mean(-1) - math.log(n)


def certified_log_prob(lm_log_prob_B: Tensor, log_weight_B: Tensor, log_weight_BN: Tensor) -> Tensor:
    """(B,) lower bounds (in expectation over the pool) on the sampler's log-density of each text."""
    return lm_log_prob_B.double() + log_weight_B.double() - sampler_log_normalizer(log_weight_B, log_weight_BN)
