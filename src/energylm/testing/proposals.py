"""Truncated proposals by brute force, in plain Python: what a sampler with temperature, top-k and top-p must draw from.

    q(v | h) ∝ P(v | h)^{1/τ} · 1[v among the k likeliest] · 1[v in the smallest set of likeliest with mass ≥ p]
    q(x) = Π_t q(x_t | x_<t)

Temperature first, then top-k, then top-p of what is left, renormalised; among equals the smaller id is the likelier. A
mass within one millionth of p has reached it, so that 8 of 20 equal tokens hold 0.4 as they do on paper.

Relations  `numerics.truncation` does the same for large vocabularies; the two share no code, so each checks the other.
"""

import itertools
import math
from collections.abc import Sequence

import torch

from energylm.config.sampling import Truncation
from energylm.testing.enumeration import index_of
from energylm.testing.exact import ExactDistribution


def truncated_probabilities(probabilities: Sequence[float], truncation: Truncation) -> list[float]:
    """The proposal q(· | h) made from P(· | h)."""
    largest = max(probabilities)
    weights = [(p / largest) ** (1 / truncation.temperature) for p in probabilities]
    likeliest_first = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    kept = likeliest_first[: truncation.top_k]
    if truncation.top_p is not None:
        total = math.fsum(weights[token] for token in kept)
        masses = itertools.accumulate(weights[token] / total for token in kept)
        count = next((n for n, mass in enumerate(masses, 1) if mass >= truncation.top_p * (1 - 1e-6)), len(kept))
        kept = kept[:count]
    total = math.fsum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


def exact_proposal(model: ExactDistribution, truncation: Truncation) -> ExactDistribution:
    """The distribution of sequences drawn token by token from `model`'s truncated conditionals."""
    length = model.tokens.shape[1]
    log_prob_N = torch.full_like(model.log_prob, float("-inf"))

    def visit(prefix: list[int], log_prob: float) -> None:
        ended = model.eos_token_id is not None and model.eos_token_id in prefix
        if ended or len(prefix) == length:
            fill = [model.eos_token_id or 0] * (length - len(prefix))
            log_prob_N[index_of(torch.tensor([prefix + fill]), model.tokens)] = log_prob
            return
        conditional = truncated_probabilities(model.next_token_log_probs(prefix).exp().tolist(), truncation)
        for token, probability in enumerate(conditional):
            if probability > 0:
                visit([*prefix, token], log_prob + math.log(probability))

    visit([], 0.0)
    return ExactDistribution(model.tokens, model.lengths, log_prob_N, 0.0, model.vocabulary_size, model.eos_token_id)
