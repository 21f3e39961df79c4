"""Text ⇄ the token sequences that a language model reads and writes, in natural order for either direction.

A string is the beginning of a document: the start token is read before it. A list of token ids is taken as it is. What
is read first stands on the left for a left-to-right model and on the right for a right-to-left one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.config.models import CUT_LEFT, LEFT_TO_RIGHT, Direction, LongTexts
from energylm.data.tokenizer import plain_encoder
from energylm.errors import DataError, ModelError

_BYTES = bytes | bytearray | memoryview
Text = str | Sequence[int]
Texts = Text | Iterable[Text] | Tensor | NDArray[np.int64]  # one, several, or the rows of a matrix of ids


class TextCodec:
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        start_token_id: int | None,
        eos_token_id: int | None,
        direction: Direction,
    ) -> None:
        self.tokenizer, self.start_token_id, self.eos_token_id = tokenizer, start_token_id, eos_token_id
        self.forward = direction == LEFT_TO_RIGHT
        self._encoder = plain_encoder(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` alone; text that spells a special token stays text."""
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def ids(self, text: Text) -> list[int]:
        return self.encode(text) if isinstance(text, str) else list(text)

    def context(self, text: Text) -> list[int]:
        """The ids of a context to continue; an empty one is the start token."""
        ids = self.ids(text)
        return self.started(ids) if isinstance(text, str) or not ids else ids

    def started(self, ids: list[int]) -> list[int]:
        """`ids` with the start token, if there is one, where reading begins."""
        start = [] if self.start_token_id is None else [self.start_token_id]
        return start + ids if self.forward else ids + start

    def ended(self, ids: list[int]) -> list[int]:
        """`ids` with the end-of-sequence token where reading ends."""
        if self.eos_token_id is None:
            raise ModelError("this model has no end-of-sequence token to count; score without it (eos=False)")
        return [*ids, self.eos_token_id] if self.forward else [self.eos_token_id, *ids]

    def scored_bytes(self, text: Text, ids: list[int], *, prefix_tokens: int) -> int:
        """UTF-8 bytes of `text` (whose ids are `ids`) without the `prefix_tokens` that are read first."""
        given = ids[:prefix_tokens] if self.forward else ids[len(ids) - prefix_tokens :]
        whole = text if isinstance(text, str) else self.decode(ids)
        return len(whole.encode()) - len(self.decode(given).encode())

    def new_texts(self, context: list[int], sequences: Sequence[list[int]]) -> list[str]:
        """The text that each sequence adds to the context; some tokenizers write a token differently at the
        beginning, so context and sequence are written together."""
        given = self.decode(context)
        wholes = self._decode_all([context + new if self.forward else new + context for new in sequences])
        return [self._added(given, whole, new) for whole, new in zip(wholes, sequences, strict=True)]

    def _decode_all(self, sequences: Sequence[list[int]]) -> list[str]:
        """`decode` of many sequences at once."""
        return list(self.tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=True))

    def _added(self, given: str, whole: str, new: list[int]) -> str:
        if self.forward:
            return whole.removeprefix(given) if whole.startswith(given) else self.decode(new)
        return whole.removesuffix(given) if whole.endswith(given) else self.decode(new)


def as_list(texts: Texts) -> list[Text]:
    """A list of texts in one form, strings or ids, whatever came."""
    if isinstance(texts, str):
        return [texts]
    listed = _listed(texts, name="texts", expected="a string, token ids, or a list of either")
    if listed and isinstance(listed[0], Integral):
        listed = [listed]
    read: list[Text] = [
        text if isinstance(text, str) else _ids(number, text) for number, text in enumerate(listed, start=1)
    ]
    if len({isinstance(text, str) for text in read}) > 1:
        raise DataError("strings and lists of token ids came together; pass all texts in one form")
    return read


def text_list(texts: Iterable[str]) -> list[str]:
    """Strings in whatever holds several in order (a list, a pandas Series, an array), as a list. One string would be
    read as a text a character, so it is refused."""
    if isinstance(texts, str):
        raise DataError("one string came where several texts are read; give a list: [text]")
    listed = _listed(texts, name="texts", expected="a list of strings")
    for number, text in enumerate(listed, start=1):
        if not isinstance(text, str):
            raise _unreadable(text, name=f"text {number}", expected="a string")
    return listed


def _ids(number: int, text: Any) -> list[int]:
    """The token ids that stand in place of a text."""
    name, expected = f"text {number}", "a string or a list of token ids"
    ids = _listed(text, name=name, expected=expected)
    if not all(issubclass(kind, Integral) for kind in set(map(type, ids))):
        raise _unreadable(text, name=name, expected=expected)
    return list(map(int, ids))


def _listed(values: Any, *, name: str, expected: str) -> list[Any]:
    """What `values` holds, in its order; `bytes` would give numbers, a table the names of its columns."""
    is_array = isinstance(values, Tensor | np.ndarray)
    is_flat = values.ndim > 0 if is_array else getattr(values, "ndim", 1) == 1
    if isinstance(values, _BYTES | Mapping | Set) or not isinstance(values, Iterable) or not is_flat:
        raise _unreadable(values, name=name, expected=expected)
    return list(values.tolist() if isinstance(values, Tensor | np.ndarray) else values)


def _unreadable(value: Any, *, name: str, expected: str) -> DataError:
    cure = "decode it first" if isinstance(value, _BYTES) else "mend it, or leave it out"
    shown = " ".join(repr(value).split())
    return DataError(f"{name}: {shown:.40} ({type(value).__name__}) came, expected {expected}; {cure}")


REMEMBERED_TEXTS = 1 << 16  # about 50 MB of ids at 160 tokens a text


class TextReader:
    """`max_tokens` is what the encoder holds, None for no limit; `cut-left` keeps the end of what is longer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        special_tokens: bool,
        max_tokens: int | None,
        long_texts: LongTexts,
        remembered_texts: int = REMEMBERED_TEXTS,
    ) -> None:
        self._encoder = plain_encoder(tokenizer)
        names = ("eos", "sep", "bos", "cls", "pad", "unk")  # the first that this tokenizer has
        ids = (getattr(tokenizer, f"{name}_token_id") for name in names)
        self._end_token_id = next((token for token in ids if token is not None), None)
        self._special_tokens, self._max_tokens, self._remembered = special_tokens, max_tokens, remembered_texts
        if long_texts == CUT_LEFT and max_tokens is not None:
            self._encoder.enable_truncation(max_tokens, direction="left")
        self._memory: OrderedDict[str, NDArray[np.int32]] = OrderedDict()

    def read(self, texts: Sequence[str], *, may_be_empty: bool = False) -> tuple[Tensor, Tensor]:
        """Ids (B, T), right-padded with 0, and lengths (B,). A text without any token is a mistake where a person gave
        it; where a model may write one (`may_be_empty`), it is read as the end-of-sequence token alone."""
        if not texts:
            return torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        encodings = self._encodings(texts)
        if may_be_empty and self._end_token_id is not None:
            end = np.array([self._end_token_id], dtype=np.int32)
            encodings = [ids if len(ids) else end for ids in encodings]
        for number, ids in enumerate(encodings, start=1):
            self._check(number, ids)
        rows = [torch.from_numpy(ids.astype(np.int64)) for ids in encodings]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    def _encodings(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        known = {text: self._memory[text] for text in set(texts) if text in self._memory}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        encoded = self._encoder.encode_batch(new, add_special_tokens=self._special_tokens)
        known |= {text: np.array(encoding.ids, dtype=np.int32) for text, encoding in zip(new, encoded, strict=True)}
        for text in known:
            self._memory[text] = known[text]
            self._memory.move_to_end(text)
        while len(self._memory) > self._remembered:
            self._memory.popitem(last=False)
        return [known[text] for text in texts]

    def _check(self, number: int, ids: NDArray[np.int32]) -> None:
        if not len(ids):
            raise DataError(f"text {number} is empty, so it has no energy; leave it out, or give it a context")
        if self._max_tokens is not None and len(ids) > self._max_tokens:
            raise DataError(
                f"text {number} has {len(ids):,} tokens but the energy's encoder holds {self._max_tokens:,}; "
                "shorten it, or let the energy read the end of long texts (long_texts='cut-left')"
            )
