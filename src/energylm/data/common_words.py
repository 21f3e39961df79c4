"""The commonest word and the commonest name among the tokens of a corpus.

A word is a token that begins one and is all letters. A name is a capitalised word that is rarer, or no token at all, in
lower case: "John" is one, "The" is not.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energylm.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGINS_WORD = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word
SHORTEST_NAME = 3  # "Mr" and "I" are capitalised, too


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
    for number, token, count in _words(tokenizer, counts_V):
        if fits(token, count):
            return number
    raise DataError(f"no token of these texts is a whole {what}; name one that the tokenizer writes as one token")


def _words(tokenizer: "PreTrainedTokenizerFast", counts_V: NDArray[np.int64]) -> Iterator[tuple[int, str, int]]:
    """Tokens that are words and occur, commonest first: id, token with its marker, count."""
    for number in np.argsort(-counts_V, kind="stable").tolist():
        token = tokenizer.convert_ids_to_tokens(number)
        if counts_V[number] and isinstance(token, str) and token.startswith(BEGINS_WORD) and token[1:].isalpha():
            yield number, token, int(counts_V[number])
