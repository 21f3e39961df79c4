"""What benchmarks are fed: networks of random weights, the same in every run, and texts.

N-best lists are LibriSpeech's where ENERGYLM_DATA has them, else made up in their form.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.language_model import LanguageModel
from energylm.config.environment import data_folder
from energylm.config.vocabulary import LANGUAGE_MODEL
from energylm.data.nbest import read_lists, sample_lists
from energylm.data.tokenizer import train_tokenizer
from energylm.energies.pooled import PooledEnergy
from energylm.errors import DataError

WORDS = 3000  # of the made-up language
SHORTEST, LONGEST = 4, 40  # words of a made-up sentence
VOCABULARY = 8192
SMOLLM2_VOCABULARY = 49_152

Network = TypeVar("Network")


def seeded(build: Callable[[], Network]) -> Network:
    """What `build` makes of the same random numbers in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def gpt2(*, layers: int, width: int, heads: int, positions: int, vocabulary_size: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=positions,
        vocab_size=vocabulary_size,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    network: GPT2LMHeadModel = seeded(lambda: GPT2LMHeadModel(config)).eval()
    return network


def bit_energy(*, layers: int, width: int, heads: int, positions: int, vocabulary_size: int) -> PooledEnergy:
    """Of a BERT."""
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
    )
    return seeded(lambda: PooledEnergy(BertModel(config, add_pooling_layer=False), kind="bit")).eval()


def smollm2(small: PreTrainedTokenizerFast, *, quick: bool) -> tuple[LanguageModel, str]:
    """SmolLM2-135M where it is here, else a network of its shape with random weights; with `quick` a tiny one. And what
    it is, in words. The `small` tokenizer is for networks that have none of their own."""
    if KNOWN_MODELS[LANGUAGE_MODEL].folder.is_dir() and not quick:
        return LanguageModel.from_pretrained(LANGUAGE_MODEL), f"{LANGUAGE_MODEL}, its own weights"
    shape: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536}
    shape |= {"num_hidden_layers": 30, "num_attention_heads": 9}
    if quick:
        shape = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3}
    tokenizer = small if quick else widened(small, SMOLLM2_VOCABULARY)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        **shape,
    )
    network: LlamaForCausalLM = seeded(lambda: LlamaForCausalLM(config)).eval()
    return LanguageModel(network, tokenizer), "tiny" if quick else f"the shape of {LANGUAGE_MODEL}, random weights"


@dataclass(frozen=True)
class Lists:
    origin: str
    texts: list[list[str]]  # the hypotheses of each utterance


def nbest_texts(count: int) -> Lists:
    """The hypotheses of `count` utterances, chosen at random but always the same."""
    try:
        lists = read_lists(data_folder() / "librispeech_nbest" / "test_clean.json")
    except DataError:
        return Lists("made up", [_made_up(random.Random(number)) for number in range(count)])
    chosen = sample_lists(lists, count, seed=0)
    return Lists(
        "LibriSpeech test_clean", [[hypothesis.text for hypothesis in of_list.hypotheses] for of_list in chosen]
    )


def tokenizer_for(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of the texts themselves."""
    return train_tokenizer(texts, vocabulary_size=VOCABULARY)


def widened(tokenizer: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    """The same tokenizer with entries that no text has, up to `size`: a big vocabulary without a big corpus."""
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
