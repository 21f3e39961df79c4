"""Rows of text that a decoder writes on and on, some tokens given and some drawn: chains and particles are such rows.

    x_t  =  given_t  or  ~ q(· | c, x_<t)          log P(x_t | c, x_<t) and log q(x_t | c, x_<t) are kept for every t

R = B·n rows continue B contexts, each read once (`contracts.ForkingDecoder`). Writing may stop at any position and go
on later, and rows may meanwhile be replaced by others of their context (`select`). A row ends with the end-of-sequence
token; what comes after it is 0 and counts nothing. Tokens are chosen by `contracts.Choices`, so that the very code that
writes is proved by enumeration; a given token takes a certain decision.

Relations  `continuations` draws whole texts at once, in micro-batches; `suffix_metropolis` gives the beginning of each
           row, `sequential_monte_carlo` selects among rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.contracts import Choices, Decoder, ForkingDecoder
from energylm.errors import ModelError
from energylm.numerics.categorical import log_sum_exp
from energylm.numerics.truncation import candidates
from energylm.progress import Progress


class ReadContexts:
    """B contexts that a decoder has read, to be continued by n rows each, as often as one likes."""

    def __init__(
        self,
        decoder: Decoder,
        contexts: Sequence[Sequence[int]],
        *,
        n: int,
        truncation: Truncation = Truncation(),  # noqa: B008  (frozen)
        eos_token_id: int | None = None,
    ) -> None:
        self.decoder, self.n, self.truncation, self.eos_token_id = decoder, n, truncation, eos_token_id
        self.contexts = len(contexts)
        self._prefix, self._logits_BV = decoder.prefill(contexts)

    def rows(self, max_new_tokens: int) -> "WrittenRows":
        """B·n rows that have written nothing yet."""
        state = self.decoder.fork(self._prefix, copies=self.n, max_new_tokens=max_new_tokens)
        return WrittenRows(self, state, self._logits_BV.repeat_interleave(self.n, dim=0), max_new_tokens=max_new_tokens)


class WrittenRows:
    """`tokens_RT`, `lengths_R`, `log_prob_RT` and `proposal_log_prob_RT` are what was written up to `position`."""

    def __init__(self, read: ReadContexts, state: Any, first_logits_RV: Tensor, *, max_new_tokens: int) -> None:
        self._read, self._state, self._first_logits_RV = read, state, first_logits_RV
        self.position, self.max_new_tokens = 0, max_new_tokens
        shape = len(first_logits_RV), max_new_tokens
        self.tokens_RT = first_logits_RV.new_zeros(shape, dtype=torch.int64)
        self.lengths_R = first_logits_RV.new_zeros(shape[0], dtype=torch.int64)
        self.log_prob_RT = first_logits_RV.new_zeros(shape, dtype=torch.float64)
        self.proposal_log_prob_RT = torch.zeros_like(self.log_prob_RT)
        self.running_R = first_logits_RV.new_ones(shape[0], dtype=torch.bool)

    @torch.no_grad()
    def write(
        self,
        until: int,
        choices: Choices,
        *,
        given_RT: Tensor | None = None,
        is_given_RT: Tensor | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Up to position `until`. Where `is_given_RT` says so, the token of `given_RT` is written instead of drawn."""
        for step in range(self.position, until):
            logits_RV = self._next_logits(step)
            is_fixed_R = ~self.running_R if is_given_RT is None else ~self.running_R | is_given_RT[:, step]
            fixed_R = torch.zeros_like(self.lengths_R) if given_RT is None else given_RT[:, step]
            token_R, model_R, proposal_R = choose_tokens(
                logits_RV, choices, self._read.truncation, fixed_R=fixed_R, is_fixed_R=is_fixed_R
            )
            self.tokens_RT[:, step] = torch.where(self.running_R, token_R, 0)
            self.log_prob_RT[:, step] = torch.where(self.running_R, model_R, 0.0)
            self.proposal_log_prob_RT[:, step] = torch.where(self.running_R, proposal_R, 0.0)
            self.lengths_R += self.running_R
            if self._read.eos_token_id is not None:
                self.running_R &= token_R != self._read.eos_token_id
            if progress is not None:
                progress.advance(len(token_R))
            self.position = step + 1
            if not self.running_R.any():
                break

    def _next_logits(self, step: int) -> Tensor:
        if step == 0:
            return self._first_logits_RV
        self._first_logits_RV = self._first_logits_RV[:0]  # not needed any more, and large
        return self._read.decoder.step(self._state, self.tokens_RT[:, step - 1])

    def select(self, rows_R: Tensor) -> None:
        """Row r goes on from what row rows_R[r] has written, a row of the same context."""
        decoder = self._read.decoder
        if not isinstance(decoder, ForkingDecoder):
            raise ModelError(
                f"{type(decoder).__name__} cannot let rows go on from one another; give it a method `select` "
                "(contracts.ForkingDecoder), or take another sampler"
            )
        if self.position > 1:  # the decoder has read all but the last token: before the second it has read none
            decoder.select(self._state, rows_R)
        for name in ("tokens_RT", "lengths_R", "log_prob_RT", "proposal_log_prob_RT", "running_R"):
            setattr(self, name, getattr(self, name)[rows_R])


def choose_tokens(
    logits_RV: Tensor, choices: Choices, truncation: Truncation, *, fixed_R: Tensor, is_fixed_R: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One token a row, log P and log q of it, each (R,): the fixed one where there is one, else drawn from q. A fixed
    token outside of a truncated proposal has log q = −inf."""
    candidate_RK, ids_RK = candidates(logits_RV, truncation)
    # A row whose token is fixed has one choice: a decision that is certain, and uses none of its random numbers.
    only_first_K = torch.full_like(candidate_RK[0], float("-inf"))
    only_first_K[0] = 0.0
    open_RK = torch.where(is_fixed_R[:, None], only_first_K, candidate_RK) if is_fixed_R.any() else candidate_RK
    column_R = choices.categorical(open_RK)
    drawn_R = column_R if ids_RK is None else ids_RK.gather(1, column_R[:, None])[:, 0]
    token_R = torch.where(is_fixed_R, fixed_R, drawn_R)
    model_R = _log_share(logits_RV, token_R)
    if truncation.is_identity:
        return token_R, model_R, model_R
    if ids_RK is None:
        return token_R, model_R, _log_share(candidate_RK, token_R)
    log_share_RK = candidate_RK.double().log_softmax(-1)
    return token_R, model_R, torch.where(ids_RK == token_R[:, None], log_share_RK, float("-inf")).amax(-1)


def _log_share(logits_RV: Tensor, token_R: Tensor) -> Tensor:
    """(R,) log-probabilities of tokens."""
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    return logits_RV.gather(1, token_R[:, None])[:, 0].double() - log_sum_exp(logits_RV, largest_R1)
