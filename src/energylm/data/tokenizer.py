"""Byte-level BPE: trained on any texts, or any tokenizer that Hugging Face can load.

Byte level (Radford et al. 2019; Bakhtin et al. 2019 §4.1 use 50,000 tokens) means that every text has an encoding and
that decoding gives the same text back. `<|endoftext|>` ends a document and so stands before the next one: it is BOS and
EOS in one. Pad, mask, cls and sep are there from the start, so that masked models can share the tokenizer.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from energylm.config.environment import is_hub_name
from energylm.errors import ModelError
from energylm.files import sha256_of_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|pad|>", "<|mask|>", "<|cls|>", "<|sep|>")  # ids 0 … 4 of a tokenizer trained here
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
