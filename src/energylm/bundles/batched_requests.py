"""Which requests share one call of the engine: those that waste little of it on each other.

A call steps all its rows together, every context with the same number of copies, until the longest is written. So a
group's largest number of copies and largest limit are at most twice those of its members, and the longest context with
the largest limit fits the model's window, as the positions of rows that are already done go on being counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from energylm import contracts
from energylm.config.sampling import Truncation
from energylm.progress import Progress
from energylm.samplers.continuations import Continuations, sample_continuations

MOST_WASTE = 2  # times


@dataclass(frozen=True)
class RequestShape:
    """What a request takes of the engine."""

    context_tokens: int
    n: int
    max_new_tokens: int


def groups(shapes: Sequence[RequestShape], *, window: int | None) -> list[list[int]]:
    """Indices of `shapes` in groups, the largest first. One that does not fit the window even alone is a group, too: it
    is the engine that says so."""
    order = sorted(range(len(shapes)), key=lambda index: (-shapes[index].n, -shapes[index].max_new_tokens, index))
    result: list[list[int]] = []
    for index in order:
        for group in result:
            if _fits([shapes[member] for member in (*group, index)], window=window):
                group.append(index)
                break
        else:
            result.append([index])
    return result


def _fits(members: Sequence[RequestShape], *, window: int | None) -> bool:
    copies, limits = [shape.n for shape in members], [shape.max_new_tokens for shape in members]
    if max(copies) > MOST_WASTE * min(copies) or max(limits) > MOST_WASTE * min(limits):
        return False
    return window is None or max(shape.context_tokens for shape in members) + max(limits) <= window


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
    results: dict[int, Continuations] = {}
    for group in groups([request.shape for request in requests], window=window):
        members = [requests[index] for index in group]
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
        for row, (index, request) in enumerate(zip(group, members, strict=True)):
            own = slice(row, row + 1), slice(request.n)
            results[index] = replace(
                drawn,
                tokens=drawn.tokens[*own, : request.max_new_tokens],
                lengths=drawn.lengths[own],
                log_prob=drawn.log_prob[own],
                proposal_log_prob=drawn.proposal_log_prob[own],
            )
    return [results[index] for index in range(len(requests))]


@dataclass(frozen=True)
class TokenAlternatives:
    """Of one continuation."""

    log_probs: list[float]
    likeliest: list[list[tuple[int, float]]]  # for each token the k likeliest ids, the likeliest first


@torch.no_grad()
def token_alternatives(
    lm: contracts.CausalModel, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], *, k: int
) -> list[TokenAlternatives]:
    """Of each continuation of its context; contexts and continuations have one token at least."""
    window = getattr(getattr(lm, "model", lm), "max_length", None)
    shapes = [RequestShape(len(context), 1, len(new)) for context, new in zip(contexts, continuations, strict=True)]
    results = [TokenAlternatives([], []) for _ in contexts]
    decoder = lm.decoder()
    for group in groups(shapes, window=window):
        steps = max(len(continuations[index]) for index in group)
        prefix, logits_BV = decoder.prefill([contexts[index] for index in group])
        state = decoder.fork(prefix, copies=1, max_new_tokens=steps)
        for step in range(steps):
            token_B = torch.tensor([[*continuations[index], *[0] * steps][step] for index in group])
            log_prob_BV = logits_BV.double().log_softmax(-1).cpu()
            value_BK, id_BK = log_prob_BV.topk(min(k, log_prob_BV.shape[1]))
            own_B = log_prob_BV.gather(1, token_B[:, None])[:, 0]
            for row, index in enumerate(group):
                if step < len(continuations[index]):
                    results[index].log_probs.append(float(own_B[row]))
                    results[index].likeliest.append(list(zip(id_BK[row].tolist(), value_BK[row].tolist(), strict=True)))
            if step + 1 < steps:
                logits_BV = decoder.step(state, token_B.to(logits_BV.device))
    return results
