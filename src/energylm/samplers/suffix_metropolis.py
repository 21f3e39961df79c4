"""Metropolis-Hastings on a causal model: cut a text at a random position and propose its end anew.

    m uniform in 0 … |x| − 1        x'_{<m} = x_{<m},  x'_{≥m} ~ q(· | c, x_{<m})
    a(x → x') = min(1, w(x') / w(x) · |x| / |x'|)                           keeps π ∝ q · w

because π(x) q(x'_{≥m} | x_{<m}) / |x| and its reverse differ by just that ratio: the common beginning cancels. Lengths
count the end-of-sequence token; where all texts are equally long their ratio is 1. With w = exp(−E) the target is
P_LM · exp(−E); with w = P_LM^α / q it is the power P_LM^α ("power sampling", Karan & Du 2025), for which a proposal of
temperature 1/α is the natural one. A beginning is read again rather than kept: a move costs |x| steps of the decoder.

Blocks     the published schedule for powers grows the text: `block_tokens` more tokens, then `moves` moves with cuts in
           all that is written, then the next block. Only the last block has the full target; the ones before give it a
           start that is better than a fresh draw.

Use it     for long texts where no draw of a pool has a weight worth keeping, and where better texts lie near good ones.
Relations  `resampling.independence_chains` is the move that always cuts at 0; `metropolis_hastings` does the same
           with a masked model's proposals in the middle of a text; `estimators.mixing` judges the chains.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.contracts import Choices
from energylm.progress import Progress
from energylm.samplers.written_rows import ReadContexts, WrittenRows

# tokens (R, T), lengths (R,), log P (R,), log q (R,) → energies (R,) and log-weights (R,), −inf forbidden
Weigh = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SuffixState:
    """R chains, each at a text. What stands past its length is 0."""

    tokens_RT: Tensor
    lengths_R: Tensor
    log_prob_R: Tensor
    proposal_log_prob_R: Tensor
    energy_R: Tensor
    log_weight_R: Tensor


@dataclass(frozen=True)
class SuffixInfo:
    accepted_R: Tensor  # bool, proposals of the old text included
    novel_R: Tensor  # bool: accepted, and different from the old text


@dataclass(frozen=True)
class SuffixMetropolis:
    """`init` draws texts, `step` moves every chain once; `grow` goes on to longer texts."""

    read: ReadContexts
    weigh: Weigh
    progress: Progress | None = None

    def init(self, new_tokens: int, choices: Choices) -> SuffixState:
        """Every chain at a draw of the proposal, of up to `new_tokens` tokens."""
        rows = self.read.rows(new_tokens)
        rows.write(new_tokens, choices, progress=self.progress)
        return self._state(rows)

    def grow(self, state: SuffixState, new_tokens: int, choices: Choices) -> SuffixState:
        """The same texts, those that have not ended written on to `new_tokens` tokens."""
        before = state.tokens_RT.shape[1]
        given_RT = torch.nn.functional.pad(state.tokens_RT, (0, new_tokens - before))
        is_given_RT = (torch.arange(new_tokens, device=given_RT.device) < before).expand_as(given_RT)
        return self._state(self._written(given_RT, is_given_RT, choices))

    def step(self, state: SuffixState, choices: Choices) -> tuple[SuffixState, SuffixInfo]:
        position_T = torch.arange(state.tokens_RT.shape[1], device=state.tokens_RT.device)
        uniform_RT = torch.where(position_T < state.lengths_R[:, None], 0.0, float("-inf"))
        cut_R = choices.categorical(uniform_RT)
        proposed = self._state(self._written(state.tokens_RT, position_T < cut_R[:, None], choices))
        log_ratio_R = proposed.log_weight_R - state.log_weight_R + cut_log_ratio(state.lengths_R, proposed.lengths_R)
        # A forbidden text (weight 0) is left at once; the ratio would be 0/0 where the proposal is forbidden, too.
        log_ratio_R = torch.where(state.log_weight_R == float("-inf"), 0.0, log_ratio_R)
        accepted_R = choices.accept(log_ratio_R)
        novel_R = accepted_R & (proposed.tokens_RT != state.tokens_RT).any(1)
        return _where(accepted_R, proposed, state), SuffixInfo(accepted_R, novel_R)

    def _written(self, given_RT: Tensor, is_given_RT: Tensor, choices: Choices) -> WrittenRows:
        rows = self.read.rows(given_RT.shape[1])
        rows.write(given_RT.shape[1], choices, given_RT=given_RT, is_given_RT=is_given_RT, progress=self.progress)
        return rows

    def _state(self, rows: WrittenRows) -> SuffixState:
        log_prob_R, proposal_R = rows.log_prob_RT.sum(1), rows.proposal_log_prob_RT.sum(1)
        energy_R, log_weight_R = self.weigh(rows.tokens_RT, rows.lengths_R, log_prob_R, proposal_R)
        return SuffixState(rows.tokens_RT, rows.lengths_R, log_prob_R, proposal_R, energy_R, log_weight_R)


def cut_log_ratio(lengths_R: Tensor, proposed_lengths_R: Tensor) -> Tensor:
    """(R,) log of how much likelier the same cut is in the proposed text than in the old one."""
    return lengths_R.double().log() - proposed_lengths_R.double().log()


def block_lengths(new_tokens: int, block_tokens: int | None) -> list[int]:
    """How long the text is at the end of each block."""
    size = min(block_tokens or new_tokens, new_tokens)
    return [*range(size, new_tokens, size), new_tokens]


def tokens_of_a_chain(new_tokens: int, block_tokens: int | None, moves: int) -> int:
    """How many steps of the decoder a chain takes, at most: each block is written once, and once a move."""
    return (moves + 1) * sum(block_lengths(new_tokens, block_tokens))


def run(
    sampler: SuffixMetropolis, choices: Choices, *, new_tokens: int, block_tokens: int | None, moves: int
) -> Iterator[tuple[SuffixState, SuffixInfo | None]]:
    """The chains after each move of the last block, and before the first of them (with no info): `moves` moves in each
    block."""
    first, *others = block_lengths(new_tokens, block_tokens)
    state = sampler.init(first, choices)
    for length in others:
        for _ in range(moves):
            state, _ = sampler.step(state, choices)
        state = sampler.grow(state, length, choices)
    yield state, None
    for _ in range(moves):
        state, info = sampler.step(state, choices)
        yield state, info


def _where(first_R: Tensor, first: SuffixState, second: SuffixState) -> SuffixState:
    return SuffixState(
        torch.where(first_R[:, None], first.tokens_RT, second.tokens_RT),
        *(
            torch.where(first_R, getattr(first, name), getattr(second, name))
            for name in ("lengths_R", "log_prob_R", "proposal_log_prob_R", "energy_R", "log_weight_R")
        ),
    )
