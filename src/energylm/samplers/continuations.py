"""Ancestral sampling of many continuations of each context, with both log-probabilities of every draw.

    x_t ~ q(· | c, x_<t)        log P(x | c) = Σ_t log P(x_t | c, x_<t)        log q(x | c) = Σ_t log q(x_t | c, x_<t)

q is the model P itself or its truncation (`config.sampling.Truncation`); keeping both sums lets importance weights stay
right under top-k, top-p and temperature. Contexts are read once and shared by their continuations
(`contracts.Decoder`); rows go through in micro-batches chosen from a memory budget. The random numbers of a row depend
on the seed, its context's index and its copy's index only, so neither micro-batches nor a larger n change a draw. Seed,
limit and truncation may be one for all contexts or one for each: jobs of several people can travel together.

Relations  `models.decoders` supplies decoders; `bundles.language_model` does the same for text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.contracts import Decoder
from energylm.numerics.categorical import draw_categorical, log_sum_exp
from energylm.numerics.kernels import row_parts, side_by_side
from energylm.numerics.truncation import candidates
from energylm.progress import Progress
from energylm.randomness import row_keys, row_uniforms, seed_tensor

MEMORY_BUDGET_BYTES = 1 << 30
# Micro-batches whose logits stay near this size remain in cache and below the size at which the allocator starts to
# return memory to the operating system after every step; fewer than MIN_ROWS rows would leave matrix products starved.
LOGITS_BYTES = 16 << 20
MIN_ROWS = 256

Value = TypeVar("Value", int, Truncation)


@dataclass(frozen=True)
class Continuations:
    """n continuations of each context. Positions past the end of a sequence hold 0 and do not count."""

    tokens: Tensor  # (B, N, T) int64
    lengths: Tensor  # (B, N) tokens drawn, the end-of-sequence token included
    log_prob: Tensor  # (B, N) float64, under the untruncated model at temperature 1
    proposal_log_prob: Tensor  # (B, N) float64, under the proposal that drew them


@dataclass(frozen=True)
class Piece:
    """One finished micro-batch: continuations `copies` of the contexts `contexts` (positions in the caller's list)."""

    contexts: list[int]
    copies: range
    continuations: Continuations


def sample_continuations(
    decoder: Decoder,
    contexts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int | Sequence[int],
    truncation: Truncation | Sequence[Truncation] = Truncation(),  # noqa: B008  (frozen)
    eos_token_id: int | None = None,
    seed: int | Sequence[int] = 0,
    first_context: int = 0,
    context_indices: Sequence[int] | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    progress: Progress | None = None,
) -> Continuations:
    """n continuations of every context. `first_context` is the index of contexts[0] in a larger job: the random numbers
    of context i are those of index first_context + i; `context_indices` names the indices where they have gaps.
    `eos_token_id=None` draws exactly max_new_tokens tokens."""
    shape = (len(contexts), n)
    result = Continuations(
        tokens=torch.zeros(*shape, max(_for_each(max_new_tokens, 1)), dtype=torch.int64),
        lengths=torch.zeros(shape, dtype=torch.int64),
        log_prob=torch.zeros(shape, dtype=torch.float64),
        proposal_log_prob=torch.zeros(shape, dtype=torch.float64),
    )
    for piece in stream_continuations(
        decoder,
        contexts,
        n=n,
        max_new_tokens=max_new_tokens,
        truncation=truncation,
        eos_token_id=eos_token_id,
        seed=seed,
        first_context=first_context,
        context_indices=context_indices,
        memory_budget_bytes=memory_budget_bytes,
        progress=progress,
    ):
        rows = torch.tensor(piece.contexts)[:, None], torch.arange(piece.copies.start, piece.copies.stop)[None, :]
        result.tokens[rows] = piece.continuations.tokens.cpu()
        result.lengths[rows] = piece.continuations.lengths.cpu()
        result.log_prob[rows] = piece.continuations.log_prob.cpu()
        result.proposal_log_prob[rows] = piece.continuations.proposal_log_prob.cpu()
    return result


def stream_continuations(
    decoder: Decoder,
    contexts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int | Sequence[int],
    truncation: Truncation | Sequence[Truncation],
    eos_token_id: int | None,
    seed: int | Sequence[int],
    first_context: int = 0,
    context_indices: Sequence[int] | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    progress: Progress | None = None,
) -> Iterator[Piece]:
    """The same in finished micro-batches, so that a caller who reduces them needs no room for all. Contexts of similar
    length travel together, hence pieces come in no particular order."""
    limits = _for_each(max_new_tokens, len(contexts))
    if n < 1 or min(limits, default=1) < 1:
        raise ValueError(f"n and max_new_tokens must be at least 1, came {n} and {max_new_tokens}")
    longest, width = max((len(context) for context in contexts), default=0), max(limits, default=1)
    rows = micro_batch_rows(
        decoder, context_tokens=longest, max_new_tokens=width, memory_budget_bytes=memory_budget_bytes
    )
    index_B = first_context + torch.arange(len(contexts)) if context_indices is None else torch.tensor(context_indices)
    limit_B, seed_B = torch.tensor(limits), seed_tensor(_for_each(seed, len(contexts)))
    truncations = _for_each(truncation, len(contexts))
    by_length = sorted(range(len(contexts)), key=lambda index: len(contexts[index]))
    together = max(1, rows // n)
    for start in range(0, len(by_length), together):
        chosen = by_length[start : start + together]
        prefix, first_logits_BV = decoder.prefill([contexts[index] for index in chosen])
        for copies in _even_ranges(n, at_most=max(1, rows // len(chosen))):
            row_R = torch.tensor(chosen).repeat_interleave(len(copies))
            member_R = torch.arange(copies.start, copies.stop).repeat(len(chosen))
            state = decoder.fork(prefix, copies=len(copies), max_new_tokens=max(limits[index] for index in chosen))
            drawn = _draw(
                decoder,
                state,
                first_logits_BV.repeat_interleave(len(copies), dim=0),
                keys_R=row_keys(seed_B[row_R], index_B[row_R], member_R).to(first_logits_BV.device),
                limit_R=limit_B[row_R].to(first_logits_BV.device),
                width=width,
                truncations=[truncations[index] for index in chosen],
                eos_token_id=eos_token_id,
                progress=progress,
            )
            del state  # before the next fork, which would stand beside it
            shape = (len(chosen), len(copies))
            yield Piece(
                contexts=chosen,
                copies=copies,
                continuations=Continuations(*(tensor.view(*shape, *tensor.shape[1:]) for tensor in drawn)),
            )


def micro_batch_rows(decoder: Decoder, *, context_tokens: int, max_new_tokens: int, memory_budget_bytes: int) -> int:
    """Rows that fit the budget, but no more than keep the machine at its best."""
    row_bytes = decoder.bytes_per_row(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
    best = max(MIN_ROWS, LOGITS_BYTES // (4 * decoder.vocabulary_size))
    return max(1, min(best, memory_budget_bytes // row_bytes))


def _for_each(value: Value | Sequence[Value], count: int) -> list[Value]:
    """One value for each context, whether one for all came or one for each."""
    return list(value) if isinstance(value, Sequence) else [value] * count


def _even_ranges(n: int, *, at_most: int) -> list[range]:
    """0 … n−1 in as few ranges as possible, all of one size but the last: what a micro-batch took fits the next."""
    size = -(-n // -(-n // at_most))
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


@torch.no_grad()
def _draw(
    decoder: Decoder,
    state: object,
    logits_RV: Tensor,
    *,
    keys_R: Tensor,
    limit_R: Tensor,
    width: int,
    truncations: Sequence[Truncation],
    eos_token_id: int | None,
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows come context after context; `truncations` has one for each context."""
    rows, steps = logits_RV.shape[0], int(limit_R.max())
    proposals = _shared_proposals(truncations, copies=rows // len(truncations), device=logits_RV.device)
    may_end_early = eos_token_id is not None or int(limit_R.min()) < steps
    tokens_RT = logits_RV.new_zeros((rows, width), dtype=torch.int64)
    lengths_R = logits_RV.new_zeros(rows, dtype=torch.int64)
    log_prob_R = logits_RV.new_zeros(rows, dtype=torch.float64)
    proposal_log_prob_R = torch.zeros_like(log_prob_R)
    running_R = logits_RV.new_ones(rows, dtype=torch.bool)
    for step in range(steps):
        token_R, model_R, proposal_R = _draw_tokens(logits_RV, row_uniforms(keys_R, step=step), proposals)
        tokens_RT[:, step] = torch.where(running_R, token_R, 0)
        lengths_R += running_R
        log_prob_R += torch.where(running_R, model_R, 0.0)
        proposal_log_prob_R += torch.where(running_R, proposal_R, 0.0)
        if progress is not None:
            progress.advance(rows)
        if may_end_early:
            running_R &= step + 1 < limit_R
            if eos_token_id is not None:
                running_R &= token_R != eos_token_id
            if not running_R.any():
                break
        if step + 1 < steps:
            logits_RV = decoder.step(state, token_R)
    return tokens_RT, lengths_R, log_prob_R, proposal_log_prob_R


def _shared_proposals(
    truncations: Sequence[Truncation], *, copies: int, device: torch.device
) -> list[tuple[Truncation, Tensor]]:
    """Each different truncation with the rows that it is for."""
    rows_BN = torch.arange(len(truncations) * copies, device=device).view(-1, copies)
    return [
        (truncation, rows_BN[[index for index, other in enumerate(truncations) if other == truncation]].flatten())
        for truncation in dict.fromkeys(truncations)
    ]


def _draw_tokens(
    logits_RV: Tensor, uniform_R: Tensor, proposals: Sequence[tuple[Truncation, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """`draw_token` for rows with different truncations."""
    if len(proposals) == 1:
        return draw_token(logits_RV, uniform_R, proposals[0][0])
    parts = [draw_token(logits_RV[rows], uniform_R[rows], truncation) for truncation, rows in proposals]
    back_R = torch.cat([rows for _, rows in proposals]).argsort()
    token_R, model_R, proposal_R = (torch.cat(column)[back_R] for column in zip(*parts, strict=True))
    return token_R, model_R, proposal_R


def draw_token(logits_RV: Tensor, uniform_R: Tensor, truncation: Truncation) -> tuple[Tensor, Tensor, Tensor]:
    """One token a row by its uniform number: ids, log P and log q, each (R,). Each thread draws for rows of its own:
    OpenMP's would go on spinning for milliseconds, into the decoder's next step."""
    drawn = side_by_side(lambda part: _draw_token(logits_RV[part], uniform_R[part], truncation), row_parts(logits_RV))
    token_R, model_R, proposal_R = (torch.cat(column) for column in zip(*drawn, strict=True))
    return token_R, model_R, proposal_R


@torch.no_grad()
def _draw_token(logits_RV: Tensor, uniform_R: Tensor, truncation: Truncation) -> tuple[Tensor, Tensor, Tensor]:
    candidate_RK, ids_RK = candidates(logits_RV, truncation)
    choice_R, proposal_R = draw_categorical(candidate_RK, uniform_R)
    if truncation.is_identity:
        return choice_R, proposal_R, proposal_R
    token_R = choice_R if ids_RK is None else ids_RK.gather(1, choice_R[:, None])[:, 0]
    likeliest_R1 = (candidate_RK * truncation.temperature).amax(-1, keepdim=True)  # no truncation drops the likeliest
    model_R = logits_RV.gather(1, token_R[:, None])[:, 0].double() - log_sum_exp(logits_RV, likeliest_R1)
    return token_R, model_R, proposal_R
