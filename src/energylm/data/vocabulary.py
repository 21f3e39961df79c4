"""What the tokens of a vocabulary stand for: text of their own, a word, a name.

A writable token stands for text of its own: a search or a random text may write it. A word is a token that begins one
and is all letters. A name is a capitalised word that is rarer, or no token at all, in lower case: "John" is one, "The"
is not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energylm.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGINS_WORD = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word
SHORTEST_NAME = 3  # "Mr" and "I" are capitalised, too


def special_ids(tokenizer: "PreTrainedTokenizerFast") -> set[int]:
    """All special tokens, whether the tokenizer has a name for them or not."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def writable_tokens(tokenizer: "PreTrainedTokenizerFast", vocabulary_size: int) -> Tensor:
    """(V,) bool: neither special, nor without text, nor a fragment of a character, nor beyond the tokenizer."""
    texts = tokenizer.backend_tokenizer.decode_batch([[number] for number in range(len(tokenizer))])
    special = special_ids(tokenizer)
    writable_V = torch.zeros(vocabulary_size, dtype=torch.bool)
    for number, text in enumerate(texts):
        writable_V[number] = bool(text) and "\ufffd" not in text and number not in special
    return writable_V


def commonest_word(tokenizer: "PreTrainedTokenizerFast", counts_V: NDArray[np.int64]) -> int:
    """The token of the commonest word."""
    return _first(tokenizer, counts_V, lambda word, count: True, what="word")


def commonest_name(tokenizer: "PreTrainedTokenizerFast", counts_V: NDArray[np.int64]) -> int:
    """The token of the commonest name."""
    vocabulary = tokenizer.get_vocab()

    def is_name(token: str, count: int) -> bool:
        lower = vocabulary.get(token.lower().replace("ġ", "Ġ"))  # the marker has a lower case of its own
        rarer = lower is None or lower >= len(counts_V) or counts_V[lower] < count
        return token[1:].istitle() and len(token) > SHORTEST_NAME and bool(rarer)

    return _first(tokenizer, counts_V, is_name, what="name")


def _first(
    tokenizer: "PreTrainedTokenizerFast", counts_V: NDArray[np.int64], fits: Callable[[str, int], bool], *, what: str
) -> int:
    """The commonest token that is a word, occurs and `fits` (token with its marker, count)."""
    for number in np.argsort(-counts_V, kind="stable").tolist():
        token, count = str(tokenizer.convert_ids_to_tokens(number)), int(counts_V[number])
        is_word = token.startswith(BEGINS_WORD) and token[1:].isalpha()
        if count and is_word and fits(token, count):
            return int(number)
    raise DataError(f"no token of these texts is a whole {what}; name one that the tokenizer writes as one token")
