"""Sentences and n-best lists for benchmarks: LibriSpeech's where ENERGYLM_DATA has them, else made up in their form."""

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORDS = 3000  # of the made-up language
SHORTEST, LONGEST = 4, 40  # words of a made-up sentence
VOCABULARY = 8192


@dataclass(frozen=True)
class Lists:
    origin: str
    texts: list[list[str]]  # the hypotheses of each utterance


def nbest_texts(count: int) -> Lists:
    """The hypotheses of `count` utterances, chosen at random but always the same."""
    from energylm.config.environment import data_folder
    from energylm.data.nbest import read_lists, sample_lists
    from energylm.errors import DataError

    try:
        lists = read_lists(data_folder() / "librispeech_nbest" / "test_clean.json")
    except DataError:
        return Lists("made up", [_made_up(random.Random(number)) for number in range(count)])
    chosen = sample_lists(lists, count, seed=0)
    return Lists("LibriSpeech test_clean", [[one.text for one in of_list.hypotheses] for of_list in chosen])


def tokenizer_for(texts: list[str]) -> "PreTrainedTokenizerFast":
    """A byte-level BPE of the texts themselves."""
    from energylm.data.tokenizer import train_tokenizer

    return train_tokenizer(texts, vocabulary_size=VOCABULARY)


def widened(tokenizer: "PreTrainedTokenizerFast", size: int) -> "PreTrainedTokenizerFast":
    """The same tokenizer with entries that no text has, up to `size`: a big vocabulary without a big corpus."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    facts = json.loads(tokenizer.backend_tokenizer.to_str())
    facts["model"]["vocab"] |= {f"<unused {number}>": number for number in range(len(tokenizer), size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(facts)), **tokenizer.special_tokens_map
    )


def _made_up(chooser: random.Random) -> list[str]:
    """A sentence and nine copies with one or two words replaced, as recognisers confuse words anywhere."""
    sentence = [_word(chooser.randrange(WORDS)) for _ in range(chooser.randint(SHORTEST, LONGEST))]
    hypotheses = [sentence]
    for _ in range(9):
        other = list(sentence)
        for _ in range(chooser.randint(1, 2)):
            other[chooser.randrange(len(other))] = _word(chooser.randrange(WORDS))
        hypotheses.append(other)
    return [" ".join(words) for words in hypotheses]


def _word(number: int) -> str:
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    syllables = []
    while True:
        number, syllable = divmod(number, len(consonants) * len(vowels))
        syllables.append(consonants[syllable // len(vowels)] + vowels[syllable % len(vowels)])
        if not number:
            return "".join(syllables)
