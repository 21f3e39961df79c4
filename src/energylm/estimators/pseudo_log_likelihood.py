"""Pseudo-log-likelihood of a masked language model, token by token: n passes for a text of n tokens.

    PLL(x) = Σ_t log p(x_t | x_\\t)                              each token hidden by itself (Salazar et al. 2020)
    within words: log p(x_t | x without t and the later tokens of its word)             (Kauf & Ivanova 2023)

The second keeps a model from guessing a piece of a rare word from its other pieces. Every text becomes as many copies
as it has tokens, each with something hidden; copies of all texts are packed by length into calls of a token budget, so
that short and long texts fill the same matrix products and little is padded.

Use it     with any `contracts.MaskedLanguageModel`; cloze models that need no mask do the same in one pass.
Relations  its negative is the local energy of a masked language model (goyal2021 §6.2.1).
"""

import torch
from torch import Tensor

from energylm.contracts import MaskedLanguageModel
from energylm.numerics.categorical import log_sum_exp

TOKENS_A_CALL = 1 << 15  # several micro-batches of the network, so that the last, unfilled one matters little
LOGITS_A_CALL = 1 << 25  # 128 MB of float32


@torch.no_grad()
def token_pseudo_log_likelihoods(
    model: MaskedLanguageModel,
    tokens_BT: Tensor,
    lengths_B: Tensor,
    *,
    words_BT: Tensor | None = None,
    tokens_a_call: int = TOKENS_A_CALL,
) -> Tensor:
    """(B, T) float64, 0 past the end of a sequence. With `words_BT`, which tells the word of each token, the later
    tokens of a word are hidden together with the one that is scored."""
    tokens_BT, lengths_B = tokens_BT.cpu(), lengths_B.cpu()
    result_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
    order_B = lengths_B.argsort(descending=True, stable=True)
    row_C = order_B.repeat_interleave(lengths_B[order_B])  # a copy for each token, the longest texts first
    place_C = torch.cat([torch.arange(int(length)) for length in lengths_B[order_B]]) if len(order_B) else row_C
    most_copies = max(1, LOGITS_A_CALL // model.vocabulary_size)
    start = 0
    while start < len(row_C):
        longest = int(lengths_B[row_C[start]])
        chosen = slice(start, start + max(1, min(most_copies, tokens_a_call // longest)))
        row_R, place_R = row_C[chosen], place_C[chosen]
        words_RT = None if words_BT is None else words_BT[row_R, :longest]
        copies_RT = tokens_BT[row_R, :longest]
        result_BT[row_R, place_R] = _log_probs(model, copies_RT, lengths_B[row_R], place_R, words_RT).cpu()
        start = chosen.stop
    return result_BT


def _log_probs(
    model: MaskedLanguageModel, tokens_RT: Tensor, lengths_R: Tensor, place_R: Tensor, words_RT: Tensor | None
) -> Tensor:
    """(R,) float64: the log-probability of the token at `place_R` of each row, with it and what goes with it hidden."""
    rows_R = torch.arange(len(place_R))
    if words_RT is None:
        hidden_RT = torch.zeros(tokens_RT.shape, dtype=torch.bool)
        hidden_RT[rows_R, place_R] = True
        logits_RV = model.masked_logits(tokens_RT, lengths_R, hidden_RT)
    else:
        position_T = torch.arange(tokens_RT.shape[1])
        same_word_RT = words_RT == words_RT[rows_R, place_R][:, None]
        hidden_RT = same_word_RT & (position_T >= place_R[:, None]) & (position_T < lengths_R[:, None])
        slot_R = (hidden_RT.flatten().cumsum(0) - 1).view_as(hidden_RT)[rows_R, place_R]
        logits_RV = model.masked_logits(tokens_RT, lengths_R, hidden_RT)[slot_R]
    target_R = tokens_RT[rows_R, place_R].to(logits_RV.device)
    chosen_R = logits_RV.gather(1, target_R[:, None])[:, 0].double()
    return chosen_R - log_sum_exp(logits_RV, logits_RV.amax(-1, keepdim=True))
