"""Sequences with noise tokens in them: where noise goes, Electric's contrastive losses, ELECTRA's detection.

**Positions.** Exactly k = ⌈rate · n⌉ of a sequence's n maskable tokens get a noise token, each set as likely: k
different positions at once (`unique_positions`, algorithm 2 of clark2020) or k independent ones
(`independent_positions`, algorithm 1). Maskable are those that are text: special tokens and padding are never replaced
and never judged. A row keeps at least one real token, since log(k/(n − k)) must be finite: k ≤ n − 1, so a single
maskable token gets no noise. What a row gets is a function of its own uniform numbers, whatever its batch
(`masking.masking_uniforms`). BERT's masking chooses each token for itself instead.

**Electric**, noise-contrastive estimation of token energies, naive and efficient.

    p̂(x_t | x_∖t) = exp(−E(x)_t)                                                      Clark et al. 2020, §2.1
    P(noise | x_t) = k q / (n p̂ + k q) = σ(E(x)_t + log q(x_t | x_∖t) + log(k/n))     algorithm 1
    P(noise | x_t) = k q / ((n−k) p̂ + k q) = σ(E + log q + log(k/(n−k)))              algorithm 2

Algorithm 1 judges n real tokens in one pass and k noise tokens in a pass each, alone in the true context: its
expectation is the NCE loss, whose minimum is p̂ = p_data, normalised by itself (Z = 1). Algorithm 2 puts k noise tokens
into the sequence at once and judges the n − k real and the k noise tokens in one pass. The contexts it trains on are
noised, so its minimum is p_data only where nothing looks at the context, and close to it while k is small and q is
good. In both, q is taken on the *original* sequence and is a constant here: the noise model never learns from this
loss. A noise token that happens to equal the original stays noise. Nothing is exponentiated: the losses are softplus of
a logit. Use it when energies must be log-probabilities: pseudo-log-likelihoods of text in one pass.

**ELECTRA**, replaced-token detection, and the cloze probabilities that hide in a trained detector.

    L = − Σ_t log σ(± s_t)        s_t the logit of "replaced"; Clark et al. 2020 (ELECTRA), eq. for L_Disc

A noise token that equals the original counts as original: the label says whether the text was *changed*. It leaves
Electric's log q + log(k/(n−k)) out, so its logits are no log-probabilities. Use it to pretrain encoders: on average
they transfer better than Electric's (clark2020 table 1).

The detector as a cloze model (ELECTRA's appendix G; clark2020 §3.2 uses the formula without printing it). At a position
with context c, a share m of tokens is drawn from q(· | c), the others come from the data, p(· | c). A token x is
labelled "original" if it was left alone, (1 − m) p(x), or if both the text and the noise happen to say x, m p(x) q(x);
otherwise, m q(x) (1 − p(x)), it is "replaced". With a = (1 − m)/m the best detector thinks

    D = P(original | x, c) = p (a + q) / (a p + q),          which solved for p is          p = D q / (a (1 − D) + q).

It needs q of every token in one pass, so only a detector trained against a two-tower noise model (ELECTRA-TT) has it.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


def noise_count(maskable_BT: Tensor, *, rate: float) -> Tensor:
    """(B,) int64: k = ⌈rate · n⌉, at most n − 1."""
    n_B = maskable_BT.sum(-1)
    # ⌈0.15 · 20⌉ is 3, but in floating point 0.15 · 20 lies a hair above it.
    k_B = (n_B.double() * rate - 1e-9).ceil().long()
    return torch.minimum(k_B, n_B - 1).clamp(min=0)


def unique_positions(uniforms_BT: Tensor, maskable_BT: Tensor, count_B: Tensor) -> Tensor:
    """(B, T) bool: the `count` maskable positions of each row whose uniform numbers are the smallest."""
    rank_BT: Tensor = uniforms_BT.masked_fill(~maskable_BT, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return (rank_BT < count_B[:, None]) & maskable_BT


def independent_positions(uniforms_BK: Tensor, maskable_BT: Tensor) -> Tensor:
    """(B, K) int64: maskable positions, each drawn by itself; 0 in rows that have none."""
    n_B1 = maskable_BT.sum(-1, keepdim=True)
    wanted_BK = (uniforms_BK * n_B1).long()  # the how-manieth maskable position
    rank_BT = maskable_BT.cumsum(-1) - 1
    hit_BKT = maskable_BT[:, None, :] & (rank_BT[:, None, :] == wanted_BK[..., None])
    return hit_BKT.long().argmax(-1)


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


def replaced_token_loss(
    replaced_logit_BT: Tensor, *, tokens_BT: Tensor, noised_BT: Tensor, maskable_BT: Tensor
) -> Tensor:
    """(B,) summed cross-entropy of "replaced" over maskable tokens, of what the detector read in `noised`."""
    sign_BT = 1 - 2 * (noised_BT != tokens_BT).to(replaced_logit_BT.dtype)
    return softplus(sign_BT * replaced_logit_BT).where(maskable_BT, 0.0).sum(-1)


def detector_log_prob(replaced_logit: Tensor, log_noise: Tensor, *, rate: float) -> Tensor:
    """log p = log D + log q − log(a (1 − D) + q), of any shape; `rate` is m, the share of tokens that were drawn."""
    log_odds = math.log(1 - rate) - math.log(rate)
    log_original, log_replaced = logsigmoid(-replaced_logit), logsigmoid(replaced_logit)
    return log_original + log_noise - torch.logaddexp(log_odds + log_replaced, log_noise)
