"""Exact distributions by enumeration: a language model's, its joint with an energy, and truncated proposals.

    P(x | c) = Π_t P_LM(x_t | c, x_<t)
    Z(c)     = Σ_x P_LM(x | c) exp(−E(c, x))                     P_joint(x | c) = P_LM(x | c) exp(−E(c, x)) / Z(c)
    P(x_t = v | x_<t) = Σ_{x continues x_<t v} P(x) / Σ_{x continues x_<t} P(x)         Deng et al. 2020, eq. 1, 2, 5

    q(v | h) ∝ P(v | h)^{1/τ} · 1[v among the k likeliest] · 1[v in the smallest set of likeliest with mass ≥ p]

Of a proposal temperature comes first, then top-k, then top-p of what is left, renormalised; among equals the smaller id
is the likelier. A mass within one millionth of p has reached it, so that 8 of 20 equal tokens hold 0.4 as on paper.

Works on anything that satisfies `contracts.CausalModel` and `contracts.SequenceEnergy` with a vocabulary small enough
to enumerate: tables, and tiny networks of your own.

Relations  `statistics` compares samples with these; `numerics.truncation` makes the same proposals for large
           vocabularies: the two share no code, so each checks the other.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.config.sampling import Truncation
from energylm.contracts import CausalModel, SequenceEnergy
from energylm.testing.enumeration import enumerate_sequences, index_of, sequence_lengths


@dataclass(frozen=True)
class ExactDistribution:
    """Every continuation of one context with its log-probability."""

    tokens: Tensor  # (N, T) int64, without the context; EOS fills the rest of a sequence that ended
    lengths: Tensor  # (N,) EOS counted
    log_prob: Tensor  # (N,) float64
    log_partition: float  # log Z(c); 0 for a language model
    vocabulary_size: int
    eos_token_id: int | None

    @property
    def probabilities(self) -> Tensor:
        """(N,)"""
        return self.log_prob.exp()

    def index(self, tokens_RT: Tensor, lengths_R: Tensor | None = None) -> Tensor:
        """(R,) the row of each sequence. With `lengths`, what stands after the end of a sequence does not matter."""
        if lengths_R is not None and self.eos_token_id is not None:
            ended_RT = torch.arange(tokens_RT.shape[1]) >= lengths_R[:, None]
            tokens_RT = tokens_RT.masked_fill(ended_RT, self.eos_token_id)
        return index_of(tokens_RT, self.tokens)

    def counts(self, tokens_RT: Tensor, lengths_R: Tensor | None = None) -> Tensor:
        """(N,) how often each sequence was drawn: what `assert_same_distribution` compares with `probabilities`."""
        return torch.bincount(self.index(tokens_RT, lengths_R), minlength=len(self.tokens))

    def next_token_log_probs(self, prefix: Sequence[int] = ()) -> Tensor:
        """(V,) log P(x_t | prefix), the future marginalised."""
        position = len(prefix)
        if position >= self.tokens.shape[1]:
            raise ValueError(f"sequences have {self.tokens.shape[1]} tokens; nothing follows a prefix of {position}")
        continues_N = (self.tokens[:, :position] == torch.tensor(list(prefix), dtype=torch.int64)).all(1)
        log_prob_A, token_A = self.log_prob[continues_N], self.tokens[continues_N, position]
        log_total = log_prob_A.logsumexp(0)
        if log_total == float("-inf"):
            raise ValueError(f"the prefix {list(prefix)} has probability zero: nothing is conditional on it")
        return torch.stack([log_prob_A[token_A == v].logsumexp(0) for v in range(self.vocabulary_size)]) - log_total


def exact_language_model(model: CausalModel, context: Sequence[int] = (), *, max_new_tokens: int) -> ExactDistribution:
    """Every continuation of `context` by `max_new_tokens` tokens (or up to EOS) and its probability under the model."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, came {max_new_tokens}")
    tokens_NT = enumerate_sequences(model.vocabulary_size, max_new_tokens, eos_token_id=model.eos_token_id)
    lengths_N = sequence_lengths(tokens_NT, eos_token_id=model.eos_token_id)
    whole_NT = _after_context(context, tokens_NT)
    with torch.no_grad():
        token_log_prob_NT = model.token_log_probs(whole_NT, len(context) + lengths_N, first=len(context))
    log_prob_N = token_log_prob_NT.double().sum(1)
    total = float(log_prob_N.exp().sum())
    if abs(total - 1) > 1e-5:
        raise AssertionError(f"not a normalised language model: its {len(log_prob_N)} probabilities sum to {total:.8f}")
    return ExactDistribution(tokens_NT, lengths_N, log_prob_N, 0.0, model.vocabulary_size, model.eos_token_id)


def exact_joint(
    model: CausalModel, energy: SequenceEnergy, context: Sequence[int] = (), *, max_new_tokens: int
) -> ExactDistribution:
    """The joint model's distribution of continuations of `context`, and its log-partition function."""
    base = exact_language_model(model, context, max_new_tokens=max_new_tokens)
    with torch.no_grad():
        energy_N = energy.energies(_after_context(context, base.tokens), len(context) + base.lengths).double()
    if not energy_N.isfinite().all():
        raise AssertionError(f"{int((~energy_N.isfinite()).sum())} of {len(energy_N)} energies are not finite")
    log_weight_N = base.log_prob - energy_N
    log_partition = log_weight_N.logsumexp(0)
    return ExactDistribution(
        base.tokens,
        base.lengths,
        log_weight_N - log_partition,
        float(log_partition),
        base.vocabulary_size,
        base.eos_token_id,
    )


def _after_context(context: Sequence[int], tokens_NT: Tensor) -> Tensor:
    context_NC = torch.tensor(list(context), dtype=torch.int64).expand(len(tokens_NT), -1)
    return torch.cat([context_NC, tokens_NT], dim=1)


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
