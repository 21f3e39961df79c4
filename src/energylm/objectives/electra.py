"""Replaced-token detection: ELECTRA's loss, and the cloze probabilities that hide in a trained detector.

    L = − Σ_t log σ(± s_t)        s_t the logit of "replaced"; Clark et al. 2020 (ELECTRA), eq. for L_Disc

A noise token that equals the original counts as original: the label says whether the text was *changed*.

The detector as a cloze model (ELECTRA's appendix G; clark2020 §3.2 uses the formula without printing it). At a
position with context c, a share m of tokens is drawn from q(· | c), the others come from the data, p(· | c). A token x
is labelled "original" if it was left alone, (1 − m) p(x), or if both the text and the noise happen to say x, m p(x)
q(x); otherwise, m q(x) (1 − p(x)), it is "replaced". With a = (1 − m)/m the best detector thinks

    D = P(original | x, c) = p (a + q) / (a p + q),          which solved for p is          p = D q / (a (1 − D) + q).

It needs q of every token in one pass, so only a detector trained against a two-tower noise model (ELECTRA-TT) has it.

Use it     to pretrain encoders: on average they transfer better than Electric's (clark2020 table 1).
Relations  `electric_nce` gives the classifier q and so learns p itself.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


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
