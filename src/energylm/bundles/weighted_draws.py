"""Draws of a language model with the energy of each: what every estimate and every choice of a joint model is made of.

    x_i ~ q(· | c)        E_i = E(c, x_i)        i = 1 … n

Continuations come in micro-batches, are read by the energy and given up: `blocks` keeps n scalars a context, however
long the continuations. It has no truncation, because a truncated proposal estimates another sum than log Z.

Relations  `samplers.continuations` draws; `residual_measures` and `residual_sampling` use the weights.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from energylm import contracts
from energylm.bundles.energy_binding import BoundEnergy, context_energies
from energylm.bundles.joint_texts import Context
from energylm.config.sampling import Truncation
from energylm.progress import Progress
from energylm.samplers.continuations import MEMORY_BUDGET_BYTES, Piece, stream_continuations

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

    def energies(self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        """(B, N) float64: the energies of N continuations of each context; +inf forbids one."""
        self.ended += ended_texts(tokens_BNT, lengths_BN, self.lm.eos_token_id)
        return context_energies(self.energy, contexts, tokens_BNT, lengths_BN)


def ended_texts(tokens_NT: Tensor, lengths_N: Tensor, eos_token_id: int | None) -> int:
    """How many of the sequences hold the end-of-sequence token; any dimensions before the last."""
    if eos_token_id is None:
        return 0
    positions_T = torch.arange(tokens_NT.shape[-1], device=tokens_NT.device)
    return int(((tokens_NT == eos_token_id) & (positions_T < lengths_N[..., None])).any(-1).sum())


def _indices(copies: range) -> Tensor:
    return torch.arange(copies.start, copies.stop)
