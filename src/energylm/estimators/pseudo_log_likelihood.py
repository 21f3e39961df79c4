"""Pseudo-log-likelihood of a masked language model, token by token: n passes for a text of n tokens.

    PLL(x) = Σ_t log p(x_t | x_\\t)                              each token hidden by itself (Salazar et al. 2020)
    within words: log p(x_t | x without t and the later tokens of its word)             (Kauf & Ivanova 2023)

The second keeps a model from guessing a piece of a rare word from its other pieces. Every text becomes as many copies
as it has tokens, each with something hidden; copies of all texts are packed by length into calls of a token budget, so
that short and long texts fill the same matrix products and little is padded.

Use it     with any `contracts.MaskedModel`; cloze models that need no mask do the same in one pass.
Relations  its negative is the local energy of a masked language model (goyal2021 §6.2.4): `energies.masked_lm` takes
           its terms from here, those of the raw energy with another `term`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from energylm.contracts import MaskedModel
from energylm.numerics.categorical import log_sum_exp

TOKENS_A_CALL = 1 << 15  # several micro-batches of the network, so that the last, unfilled one matters little
LOGITS_A_CALL = 1 << 25  # 128 MB of float32


def log_probs_at(logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """(N,) float64 (float32 where a device has none): log softmax(logits)[token]; the softmax runs over the whole
    vocabulary."""
    total_N = log_sum_exp(logits_NV, logits_NV.amax(-1, keepdim=True))
    return logits_NV.gather(1, tokens_N[:, None])[:, 0].to(total_N.dtype) - total_N


def token_pseudo_log_likelihoods(
    model: MaskedModel,
    tokens_BT: Tensor,
    lengths_B: Tensor,
    *,
    words_BT: Tensor | None = None,
    tokens_a_call: int = TOKENS_A_CALL,
) -> Tensor:
    """(B, T) float64, 0 past the end of a sequence. With `words_BT`, which tells the word of each token, the later
    tokens of a word are hidden together with the one that is scored."""
    return hidden_token_terms(
        model, tokens_BT, lengths_B, term=log_probs_at, words_BT=words_BT, tokens_a_call=tokens_a_call
    )


@torch.no_grad()
def hidden_token_terms(
    model: MaskedModel,
    tokens_BT: Tensor,
    lengths_B: Tensor,
    *,
    term: Callable[[Tensor, Tensor], Tensor],
    wanted_BT: Tensor | None = None,
    words_BT: Tensor | None = None,
    source_B: Tensor | None = None,
    tokens_a_call: int = TOKENS_A_CALL,
) -> Tensor:
    """(B, T) float64 on the CPU: `term(logits_NV, tokens_N)` of each token, it being hidden; 0 past the end and where
    `wanted_BT` is false. `source_B` names the source of each sequence, for models that read one."""
    tokens_BT, lengths_B = tokens_BT.cpu(), lengths_B.cpu()
    real_BT = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
    wanted_BT = real_BT if wanted_BT is None else real_BT & wanted_BT.cpu()
    result_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
    order_B = lengths_B.argsort(descending=True, stable=True)
    rank_C, position_C = wanted_BT[order_B].nonzero(as_tuple=True)  # a copy for each token, the longest texts first
    row_C = order_B[rank_C]
    most_copies = max(1, LOGITS_A_CALL // model.vocabulary_size)
    start = 0
    while start < len(row_C):
        longest = int(lengths_B[row_C[start]])
        chosen = slice(start, start + max(1, min(most_copies, tokens_a_call // longest)))
        row_R, position_R = row_C[chosen], position_C[chosen]
        copies_RT, lengths_R = tokens_BT[row_R, :longest], lengths_B[row_R]
        words_RT = None if words_BT is None else words_BT[row_R, :longest]
        source_R = None if source_B is None else source_B[row_R.to(source_B.device)]
        logits_RV = _logits_at(model, copies_RT, lengths_R, position_R, words_RT, source_R)
        targets_R = copies_RT.gather(1, position_R[:, None])[:, 0].to(logits_RV.device)
        result_BT[row_R, position_R] = term(logits_RV, targets_R).cpu()
        start = chosen.stop
    return result_BT


def _logits_at(
    model: MaskedModel,
    tokens_RT: Tensor,
    lengths_R: Tensor,
    position_R: Tensor,
    words_RT: Tensor | None,
    source_R: Tensor | None,
) -> Tensor:
    """(R, V): the logits at `position_R` of each row, with it and what goes with it hidden."""
    position_T = torch.arange(tokens_RT.shape[1])
    if words_RT is None:
        hidden_RT = position_T == position_R[:, None]
        return model.masked_logits(tokens_RT, lengths_R, hidden_RT, source_R=source_R)
    rows_R = torch.arange(len(position_R))
    same_word_RT = words_RT == words_RT[rows_R, position_R][:, None]
    hidden_RT = same_word_RT & (position_T >= position_R[:, None]) & (position_T < lengths_R[:, None])
    slot_R = (hidden_RT.flatten().cumsum(0) - 1).view_as(hidden_RT)[rows_R, position_R]
    return model.masked_logits(tokens_RT, lengths_R, hidden_RT, source_R=source_R)[slot_R]
