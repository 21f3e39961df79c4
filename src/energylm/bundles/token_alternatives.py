"""What a language model thought of each token of given continuations: its log-probability and those of the likeliest.

    log P(x_t | c, x_<t)        and the k largest of log P(· | c, x_<t)

Under the untruncated model at temperature 1, in nats. Continuations are stepped through together, token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from energylm import contracts
from energylm.bundles.request_groups import RequestShape, groups


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
    found = [TokenAlternatives([], []) for _ in contexts]
    decoder = lm.decoder()
    for group in groups(shapes, window=window):
        steps = max(len(continuations[place]) for place in group)
        prefix, logits_BV = decoder.prefill([contexts[place] for place in group])
        state = decoder.fork(prefix, copies=1, max_new_tokens=steps)
        for step in range(steps):
            token_B = torch.tensor([[*continuations[place], *[0] * steps][step] for place in group])
            log_prob_BV = logits_BV.double().log_softmax(-1).cpu()
            value_BK, id_BK = log_prob_BV.topk(min(k, log_prob_BV.shape[1]))
            own_B = log_prob_BV.gather(1, token_B[:, None])[:, 0]
            for row, place in enumerate(group):
                if step < len(continuations[place]):
                    found[place].log_probs.append(float(own_B[row]))
                    found[place].likeliest.append(list(zip(id_BK[row].tolist(), value_BK[row].tolist(), strict=True)))
            if step + 1 < steps:
                logits_BV = decoder.step(state, token_B.to(logits_BV.device))
    return found
