"""Noise-contrastive estimation of token energies: Electric, naive and efficient.

    p̂(x_t | x_∖t) = exp(−E(x)_t)                                                      Clark et al. 2020, §2.1
    P(noise | x_t) = k q / (n p̂ + k q) = σ(E(x)_t + log q(x_t | x_∖t) + log(k/n))     algorithm 1
    P(noise | x_t) = k q / ((n−k) p̂ + k q) = σ(E + log q + log(k/(n−k)))              algorithm 2

Algorithm 1 judges n real tokens in one pass and k noise tokens in a pass each, alone in the true context: its
expectation is the NCE loss, whose minimum is p̂ = p_data, normalised by itself (Z = 1). Algorithm 2 puts k noise
tokens into the sequence at once and judges the n − k real and the k noise tokens in one pass. The contexts it trains
on are noised, so its minimum is p_data only where nothing looks at the context, and close to it while k is small and q
is good. In both, q is taken on the *original* sequence and is a constant here: the noise model never learns from this
loss. A noise token that happens to equal the original stays noise. Nothing is exponentiated: the losses are softplus
of a logit.

Use it     when energies must be log-probabilities: pseudo-log-likelihoods of text in one pass.
Relations  `electra` leaves log q + log(k/(n−k)) out and calls lucky noise real: its logits are no log-probabilities.
           `noise_positions` chooses the positions.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def naive_nce(
    real_energy_BT: Tensor,
    real_log_noise_BT: Tensor,
    noise_energy_BK: Tensor,
    noise_log_noise_BK: Tensor,
    *,
    maskable_BT: Tensor,
    count_B: Tensor,
) -> Tensor:
    """(B,) algorithm 1. Energies of the original tokens, and of K noise tokens in the original context, with the noise
    model's log-probabilities of each; of the K columns the first `count` of a row are used, its k."""
    counts = {"noise_count_B": count_B, "real_count_B": maskable_BT.sum(-1)}
    real_BT = softplus(noise_logits(real_energy_BT, real_log_noise_BT, **counts))
    noise_BK = softplus(-noise_logits(noise_energy_BK, noise_log_noise_BK, **counts))
    used_BK = torch.arange(noise_BK.shape[1], device=noise_BK.device) < count_B[:, None]
    return real_BT.where(maskable_BT, 0.0).sum(-1) + noise_BK.where(used_BK, 0.0).sum(-1)


def efficient_nce(energy_BT: Tensor, log_noise_BT: Tensor, *, is_noise_BT: Tensor, maskable_BT: Tensor) -> Tensor:
    """(B,) algorithm 2. Energies of the noised sequence; log q of each of its tokens given the original context."""
    k_B = is_noise_BT.sum(-1)
    logit_BT = noise_logits(energy_BT, log_noise_BT, noise_count_B=k_B, real_count_B=maskable_BT.sum(-1) - k_B)
    loss_BT = softplus(torch.where(is_noise_BT, -logit_BT, logit_BT))
    return loss_BT.where(maskable_BT, 0.0).sum(-1)


def noise_logits(energy_BX: Tensor, log_noise_BX: Tensor, *, noise_count_B: Tensor, real_count_B: Tensor) -> Tensor:
    """(B, X) the log-odds that a token is noise, where `noise_count` noise tokens stand against `real_count` real ones;
    −inf in rows without noise, which then cost nothing."""
    log_ratio_B = (noise_count_B.double() / real_count_B.clamp(min=1)).log()
    return energy_BX + log_noise_BX.detach() + log_ratio_B.to(energy_BX.dtype)[:, None]
