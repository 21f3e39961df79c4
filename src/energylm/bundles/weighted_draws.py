"""Draws of a language model with the energy of each: what every estimate and every choice of a joint model is made of.

    x_i ~ q(· | c)        E_i = E(c, x_i)        i = 1 … n

Continuations come in micro-batches, are read by the energy and given up: `blocks` keeps n scalars a context, however
long the continuations. It has no truncation, because a truncated proposal estimates another sum than log Z.

A `CandidatePool` is what is left of n such draws for one context, whichever sampler made them.

Relations  `samplers.continuations` draws; `residual_measures` and `joint_samplers` use the weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm import contracts
from energylm.bundles.energy_binding import BoundEnergy, context_energies, energies_and_states
from energylm.bundles.joint_texts import Context
from energylm.config.sampling import Truncation
from energylm.estimators.tilting import RewardCurve, TiltPoint, reward_curve, tilt_point
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.progress import Progress
from energylm.records import Record
from energylm.samplers.continuations import MEMORY_BUDGET_BYTES, Piece, micro_batch_rows, stream_continuations

WEIGHTS_AT_ONCE = 1 << 20  # scalars kept before contexts are reduced to their estimates: 8 MB


class WeightedDraws:
    def __init__(
        self,
        lm: contracts.CausalModel,
        energy: BoundEnergy,
        *,
        memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    ) -> None:
        self.lm, self.energy, self._memory_budget_bytes = lm, energy, memory_budget_bytes
        self.ended = 0  # texts with an end-of-sequence token that the energy has read

    def counting_afresh(self) -> "WeightedDraws":
        """The same, for a result of its own: what it counts is that result's."""
        return WeightedDraws(self.lm, self.energy, memory_budget_bytes=self._memory_budget_bytes)

    def stream(
        self,
        contexts: Sequence[Context],
        *,
        n: int,
        max_new_tokens: int | Sequence[int],
        truncation: Truncation | Sequence[Truncation],
        eos_token_id: int | None,
        seed: int | Sequence[int],
        first_context: int = 0,
        context_indices: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[tuple[Piece, Tensor]]:
        """Finished micro-batches of continuations and their energies (B, N)."""
        for piece in stream_continuations(
            self.lm.decoder(),
            [context.lm for context in contexts],
            n=n,
            max_new_tokens=max_new_tokens,
            truncation=truncation,
            eos_token_id=eos_token_id,
            seed=seed,
            first_context=first_context,
            context_indices=context_indices,
            memory_budget_bytes=self._memory_budget_bytes,
            progress=progress,
        ):
            drawn = piece.continuations
            yield piece, self.energies([contexts[i] for i in piece.contexts], drawn.tokens, drawn.lengths)

    def blocks(
        self,
        contexts: Sequence[Context],
        *,
        n: int,
        max_new_tokens: int,
        eos_token_id: int | None,
        seed: int,
        first_context: int = 0,
        progress: Progress | None = None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Log-weights −E (B, N) of the n untruncated draws of as many contexts at a time as memory holds, in order."""
        together = max(1, WEIGHTS_AT_ONCE // n)
        for start in range(0, len(contexts), together):
            block = contexts[start : start + together]
            log_weight_BN = torch.empty(len(block), n, dtype=torch.float64)
            for piece, energy_BN in self.stream(
                block,
                n=n,
                max_new_tokens=max_new_tokens,
                truncation=Truncation(),
                eos_token_id=eos_token_id,
                seed=seed,
                first_context=first_context + start,
                progress=progress,
            ):
                log_weight_BN[torch.tensor(piece.contexts)[:, None], _indices(piece.copies)[None, :]] = -energy_BN
            yield slice(start, start + len(block)), log_weight_BN

    def rows_at_once(self, *, context_tokens: int, max_new_tokens: int) -> int:
        """Rows that the memory budget holds."""
        return micro_batch_rows(
            self.lm.decoder(),
            context_tokens=context_tokens,
            max_new_tokens=max_new_tokens,
            memory_budget_bytes=self._memory_budget_bytes,
        )

    def energies(self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        """(B, N) float64: the energies of N continuations of each context; +inf forbids one."""
        self.ended += ended_texts(tokens_BNT, lengths_BN, self.lm.eos_token_id)
        return context_energies(self.energy, contexts, tokens_BNT, lengths_BN)

    def energies_and_states(
        self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N) energies of continuations that may be unfinished, and the states (B, N, D) of the energy's network."""
        return energies_and_states(self.energy, contexts, tokens_BNT, lengths_BN)


def ended_texts(tokens_NT: Tensor, lengths_N: Tensor, eos_token_id: int | None) -> int:
    """How many of the sequences hold the end-of-sequence token; any dimensions before the last."""
    if eos_token_id is None:
        return 0
    positions_T = torch.arange(tokens_NT.shape[-1], device=tokens_NT.device)
    return int(((tokens_NT == eos_token_id) & (positions_T < lengths_N[..., None])).any(-1).sum())


def _indices(copies: range) -> Tensor:
    return torch.arange(copies.start, copies.stop)


@dataclass(frozen=True)
class SamplerReport(Record):
    """How far to trust what a sampler kept, in one shape for all."""

    sampler: str
    effective: float  # how many independent draws of the target the candidates are worth
    acceptance: float | None  # part of the proposals; None where nothing is accepted or refused
    distance: float | None  # from the target in total variation, at most, as far as the candidates show; None: unknown
    log_partition: float | None  # log Ẑ, where the sampler estimates it without bias of Ẑ
    is_trusted: bool | None  # None where nothing can be said
    verdict: str


@dataclass(frozen=True, repr=False)
class CandidatePool(Record):
    """n weighted candidates to continue one context, and which of them were kept."""

    tokens: Tensor  # (N, T) int64, 0 past the end
    lengths: Tensor  # (N,) the end-of-sequence token counted
    log_prob: Tensor  # (N,) under the language model
    proposal_log_prob: Tensor  # (N,) under the truncated proposal
    energy: Tensor  # (N,) +inf for a candidate that is forbidden
    log_weight: Tensor  # (N,)
    kept: list[int]  # the first has the sampler's law; so have the rest, but with resample and smc
    report: SamplerReport

    computed = ("ess", "largest_share")

    def candidate(self, number: int) -> list[int]:
        return self.tokens[number, : self.lengths[number]].tolist()

    @property
    def shares(self) -> Tensor:
        """(N,) the share of each candidate in the weight; with `resample` the probability that it is kept."""
        return normalized_log_weights(self.log_weight).exp()

    @property
    def ess(self) -> float:
        return float(effective_sample_size(self.log_weight))

    @property
    def largest_share(self) -> float:
        return float(self.shares.max())

    def reward_curve(self, betas: Sequence[float], *, beta: float) -> RewardCurve:
        """Over β from these candidates, which were weighed at `beta`: s = −E / β. The base is what they are weighed
        from: the truncated proposal with weights "paper", the language model with "corrected"."""
        return reward_curve(-self.energy / beta, betas=betas, base_log_weight_N=self._base_log_weight())

    def tilt(self) -> TiltPoint:
        """What the weights do to that base: mean score and KL at the β that they are weighed with."""
        return tilt_point(-self.energy, beta=1.0, base_log_weight_N=self._base_log_weight())

    def _base_log_weight(self) -> Tensor:
        is_allowed_N = self.energy.isfinite()
        return torch.where(is_allowed_N, self.log_weight + self.energy, 0.0)
