"""Small languages whose every sequence has a known probability: palindromes and hidden Markov models.

    palindromes   with probability p = 0.8 one of the V^⌈T/2⌉ palindromes, each alike; otherwise one of the others
    hmm-low       four hidden states, V = 5, T = 5, entropy 5.0 nats
    hmm-high      the same with noisier emissions, entropy 6.4 nats                                Goyal 2021, §6.2.3

The paper prints 5.32 to 5.35 nats as the true NLL of its palindromes; p = 0.8 with V = T = 5 has 5.964 (the printed
numbers fit p ≈ 0.93). It prints no parameters of its hidden Markov models: these here have its entropies. States follow
each other in a ring; each state has a symbol of its own, and the fifth symbol is only ever noise.

Relations  `phonemes` is the paper's real language, whose true distribution nobody knows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SmallLanguage:
    """Probabilities of all V^T sequences, numbered in lexicographic order, in float64."""

    vocabulary_size: int
    length: int
    log_prob_S: Tensor

    @property
    def entropy(self) -> float:
        """Nats of a sequence: the lowest NLL that any model can have in expectation."""
        return float(torch.special.entr(self.log_prob_S.exp()).sum())

    def sequences(self) -> Tensor:
        """(S, T) all of them."""
        return self._written(torch.arange(len(self.log_prob_S)))

    def sample(self, count: int, *, generator: torch.Generator) -> Tensor:
        """(count, T) independent draws."""
        cumulative_S = self.log_prob_S.exp().cumsum(0)
        uniform_N = torch.rand(count, dtype=torch.float64, generator=generator) * cumulative_S[-1]
        return self._written(torch.searchsorted(cumulative_S, uniform_N, right=True).clamp(max=len(cumulative_S) - 1))

    def _written(self, number_N: Tensor) -> Tensor:
        place_T = self.vocabulary_size ** torch.arange(self.length - 1, -1, -1)
        return number_N[:, None] // place_T % self.vocabulary_size


def palindromes(vocabulary_size: int = 5, length: int = 5, *, probability: float = 0.8) -> SmallLanguage:
    count = vocabulary_size**length
    flat = SmallLanguage(vocabulary_size, length, torch.zeros(count, dtype=torch.float64))
    sequences_ST = flat.sequences()
    is_one_S = (sequences_ST == sequences_ST.flip(1)).all(1)
    ones = int(is_one_S.sum())
    log_prob_S = torch.full_like(flat.log_prob_S, math.log((1 - probability) / (count - ones)))
    return SmallLanguage(vocabulary_size, length, log_prob_S.masked_fill(is_one_S, math.log(probability / ones)))


def hidden_markov(initial_K: Tensor, transition_KK: Tensor, emission_KV: Tensor, *, length: int) -> SmallLanguage:
    """P(y) = Σ over paths z of P(z_1) Π_t P(y_t | z_t) P(z_{t+1} | z_t), by the forward recursion for all y at once."""
    states, vocabulary_size = emission_KV.shape
    reach_PK = initial_K[None]  # P(prefix, next state) for all prefixes
    for position in range(length):
        seen_PVK = reach_PK[:, None] * emission_KV.T
        if position + 1 == length:
            return SmallLanguage(vocabulary_size, length, seen_PVK.sum(-1).flatten().log())
        reach_PK = (seen_PVK @ transition_KK).reshape(-1, states)
    raise ValueError(f"sequences need at least one token, came length {length}")


def ring(*, advance: float, emit: float, states: int = 4, vocabulary_size: int = 5, length: int = 5) -> SmallLanguage:
    """A hidden Markov model that goes round: the next state with probability `advance`, else one of the others; state k
    emits symbol k with probability `emit`, else one of the others."""
    transition_KK = torch.full((states, states), (1 - advance) / (states - 1), dtype=torch.float64)
    emission_KV = torch.full((states, vocabulary_size), (1 - emit) / (vocabulary_size - 1), dtype=torch.float64)
    for state in range(states):
        transition_KK[state, (state + 1) % states] = advance
        emission_KV[state, state] = emit
    initial_K = torch.full((states,), 1 / states, dtype=torch.float64)
    return hidden_markov(initial_K, transition_KK, emission_KV, length=length)


SMALL_LANGUAGES: Mapping[str, Callable[[], SmallLanguage]] = {
    "palindromes": palindromes,
    "hmm_low": lambda: ring(advance=0.9, emit=0.89),
    "hmm_high": lambda: ring(advance=0.9, emit=0.755),
}
