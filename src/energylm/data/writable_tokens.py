"""The tokens that stand for text of their own: what a search or a random text may write."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
