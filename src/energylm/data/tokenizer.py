"""Byte-level BPE: trained on any texts, or any tokenizer that Hugging Face can load.

Byte level (Radford et al. 2019; Bakhtin et al. 2019 §4.1 use 50,000 tokens) means that every text has an encoding and
that decoding gives the same text back. `<|endoftext|>` ends a document and so stands before the next one: it is BOS and
EOS in one. Pad, mask, cls and sep are there from the start, so that masked models can share the tokenizer.

What tokens stand for: a writable token stands for text of its own, so that a search or a random text may write it. A
word is a token that begins one and is all letters. A name is a capitalised word that is rarer, or no token at all, in
lower case: "John" is one, "The" is not.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from energylm.config.environment import is_hub_name
from energylm.errors import DataError, ModelError
from energylm.files import sha256_of_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|pad|>", "<|mask|>", "<|cls|>", "<|sep|>")  # ids 0 … 4 of a tokenizer trained here
BEGINS_WORD = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word
SHORTEST_NAME = 3  # "Mr" and "I" are capitalised, too
_STATE_OF_USE = ("truncation", "padding", "post_processor")  # change with every call, not with the language


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> "PreTrainedTokenizerFast":
    """A byte-level BPE of `vocabulary_size` tokens, fewer if the texts do not have as many pairs to merge."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    end, pad, mask, cls, sep = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=end,
        eos_token=end,
        unk_token=end,  # never written by a byte-level BPE; named so that nobody adds another token
        pad_token=pad,
        mask_token=mask,
        cls_token=cls,
        sep_token=sep,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(location: str | Path) -> "PreTrainedTokenizerFast":
    """A tokenizer from a folder, a corpus folder, a GGUF file, or OWNER/NAME of the hub. Users' names go through
    `bundles.known_models.locate` first."""
    path = Path(location).expanduser()
    cure = "give a folder with tokenizer.json, a corpus folder or OWNER/NAME of the hub"
    if (path / "tokenizer" / "tokenizer.json").is_file():
        path = path / "tokenizer"
    if not path.exists() and not is_hub_name(str(location)):
        raise ModelError(f"tokenizer {str(location)!r} does not exist; {cure}")
    try:
        if (path / "tokenizer.json").is_file():  # the file says it all; the Auto class would import torch
            from transformers import PreTrainedTokenizerFast

            fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(path)
            return fast
        from transformers import AutoTokenizer

        if path.is_file():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        else:
            tokenizer = AutoTokenizer.from_pretrained(path if path.is_dir() else str(location))
    except Exception as error:  # a damaged tokenizer.json surfaces as a bare Exception from Rust
        reason = " ".join(str(error).split())
        raise ModelError(f"tokenizer {str(location)!r} cannot be loaded ({reason:.160}); {cure}") from None
    if not tokenizer.is_fast:
        raise ModelError(
            f"tokenizer {str(location)!r} has no fast (Rust) version; convert it to a tokenizer.json first"
        )
    return cast("PreTrainedTokenizerFast", tokenizer)  # what `is_fast` says


def end_token_id(tokenizer: "PreTrainedTokenizerFast") -> int:
    """The token that ends a document: EOS, or SEP for tokenizers of masked models."""
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token_id is not None:
            return int(token_id)
    raise ModelError(
        f"tokenizer {tokenizer.name_or_path!r} has neither an EOS nor a SEP token to end documents with; "
        "set eos_token in its tokenizer_config.json"
    )


def tokenizer_sha256(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Equal for tokenizers that agree on all ids: vocabulary, merges, normaliser, splitting, added tokens."""
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    return sha256_of_json({key: value for key, value in pipeline.items() if key not in _STATE_OF_USE})


def plain_encoder(tokenizer: "PreTrainedTokenizerFast") -> "Tokenizer":
    """A copy for encoding corpora: never truncates or pads, and text that spells a special token stays text."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


def unread_characters(encoder: "Tokenizer", texts: Sequence[str], *, unknown_id: int | None) -> tuple[int, int]:
    """Of the characters that are no white space: how many no token stands for, or the unknown one, and how many there
    are. A tokenizer without an unknown token drops in silence what it has no piece for."""
    unread = total = 0
    for text, encoding in zip(texts, encoder.encode_batch(list(texts), add_special_tokens=False), strict=True):
        is_read = bytearray(len(text))
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id != unknown_id:
                is_read[start:stop] = b"\1" * (stop - start)
        blank = sum(map(str.isspace, text))
        total += len(text) - blank
        unread += sum(not (read or character.isspace()) for read, character in zip(is_read, text, strict=True))
    return unread, total


def special_ids(tokenizer: "PreTrainedTokenizerFast") -> set[int]:
    """All special tokens, whether the tokenizer has a name for them or not."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def writable_tokens(tokenizer: "PreTrainedTokenizerFast", vocabulary_size: int) -> "Tensor":
    """(V,) bool: neither special, nor without text, nor a fragment of a character, nor beyond the tokenizer."""
    import torch

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
