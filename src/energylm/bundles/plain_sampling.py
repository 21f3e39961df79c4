"""Continuations of a language model alone for requests of several people, which travel together.

A row's random numbers are those of its request's seed, its index and its copy, so that what is drawn is what
`LanguageModel.sample` draws for the same seed, whatever else is in the batch.

Relations  `residual_sampling.sample_requests` is the same under an energy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from energylm import contracts
from energylm.bundles.request_groups import RequestShape, groups
from energylm.config.sampling import Truncation
from energylm.progress import Progress
from energylm.samplers.continuations import Continuations, sample_continuations


@dataclass(frozen=True)
class DrawRequest:
    """A context as the language model reads it, and n continuations that are asked for."""

    context: Sequence[int]
    n: int
    max_new_tokens: int
    truncation: Truncation
    seed: int
    index: int = 0

    @property
    def shape(self) -> RequestShape:
        return RequestShape(len(self.context), self.n, self.max_new_tokens)


def draw_requests(
    lm: contracts.CausalModel, requests: Sequence[DrawRequest], *, progress: Progress | None = None
) -> list[Continuations]:
    """The continuations of each request, (1, n, T)."""
    window = getattr(getattr(lm, "model", lm), "max_length", None)
    found: dict[int, Continuations] = {}
    for group in groups([request.shape for request in requests], window=window):
        members = [requests[place] for place in group]
        drawn = sample_continuations(
            lm.decoder(),
            [request.context for request in members],
            n=max(request.n for request in members),
            max_new_tokens=[request.max_new_tokens for request in members],
            truncation=[request.truncation for request in members],
            eos_token_id=lm.eos_token_id,
            seed=[request.seed for request in members],
            context_indices=[request.index for request in members],
            progress=progress,
        )
        for row, (place, request) in enumerate(zip(group, members, strict=True)):
            own = slice(row, row + 1), slice(request.n)
            found[place] = replace(
                drawn,
                tokens=drawn.tokens[*own, : request.max_new_tokens],
                lengths=drawn.lengths[own],
                log_prob=drawn.log_prob[own],
                proposal_log_prob=drawn.proposal_log_prob[own],
            )
    return [found[place] for place in range(len(requests))]
