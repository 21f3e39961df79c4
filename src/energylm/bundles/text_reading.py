"""Text → the token ids of an encoder, in batches, with the latest encodings remembered.

Text that spells a special token stays text. The encoder's own special tokens ([CLS] … [SEP]) are added where its
tokenizer has them. A text without any token is refused, or read as the end of a text where a model may write one. The
same real texts come back in every epoch and every measurement, so encodings are kept; the least recently used go first.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.config.energy import CUT_LEFT, LongTexts
from energylm.data.tokenizer import plain_encoder
from energylm.errors import DataError

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
        known |= {text: np.array(one.ids, dtype=np.int32) for text, one in zip(new, encoded, strict=True)}
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
