"""Long texts as intersecting blocks of tokens (bakhtin2019 §5.4): every token is in a block, every block is full.

    starts    0, stride, 2·stride, … as long as a block fits, and a last one that ends with the text

A text of at most one block is one block. Blocks carry the special tokens of their encoder, if it has any, and the
place of their text, so that a score can be shown where it belongs. Disguises that can be undone are undone before a
text is read (`text_disguises`); places stay those of the text as it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from energylm.config.texts import BlockConfig
from energylm.data.examples import padded, special_tokens_around
from energylm.data.text_disguises import PlainText, plain
from energylm.data.tokenizer import plain_encoder
from energylm.errors import ModelError


@dataclass(frozen=True)
class EncodedText:
    """T tokens without special ones; token t is characters `offsets[t, 0]` to `offsets[t, 1]` of the whole text."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    text: str = ""  # what was read: the whole text, or the part that was cut out
    undone: str = ""  # disguises of the whole text, in words
    read_offsets: NDArray[np.int32] | None = None  # in what was read, where that is not the text as it came

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, length: int) -> "EncodedText":
        """Tokens `start` to `start + length`, or to the end of the text. Whole texts are cut, not pieces."""
        if start == 0 and length >= len(self):
            return self
        part = slice(start, start + length)
        places = (self.offsets if self.read_offsets is None else self.read_offsets)[part]
        first, last = (int(places[0, 0]), int(places[-1, 1])) if len(places) else (0, 0)
        return EncodedText(self.ids[part], self.offsets[part], self.text[first:last], self.undone)


def block_starts(tokens: int, blocks: BlockConfig) -> NDArray[np.int64]:
    """The first token of each block of a text of `tokens` tokens; none of an empty text."""
    if tokens == 0:
        return np.zeros(0, dtype=np.int64)
    last = max(tokens - blocks.tokens, 0)
    count = 1 + -(-last // blocks.stride)
    return np.minimum(np.arange(count, dtype=np.int64) * blocks.stride, last)


class BlockReader:
    """Text → tokens → padded blocks, with the tokenizer of an encoder. Text that spells a special token stays text.
    `undoes`: disguises are undone before reading; else a text is read as it came."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, blocks: BlockConfig, *, special_tokens: bool) -> None:
        self.blocks, self.undoes = blocks, True
        self._encoder = plain_encoder(tokenizer)
        framed = self._encoder.encode("a", add_special_tokens=True)
        self._before, _, self._after = special_tokens_around(framed) if special_tokens else ((), (), ())

    @property
    def row_tokens(self) -> int:
        """Of a full block with its special tokens: what the encoder must hold."""
        return len(self._before) + self.blocks.tokens + len(self._after)

    def check(self, *, name: str, max_tokens: int | None) -> None:
        if max_tokens is not None and self.row_tokens > max_tokens:
            raise ModelError(
                f"blocks of {self.blocks.tokens} tokens take {self.row_tokens} with special ones, but {name} holds "
                f"{max_tokens}; give shorter blocks"
            )

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        readings = [plain(text) if self.undoes else PlainText(text) for text in texts]
        encodings = self._encoder.encode_batch([reading.text for reading in readings], add_special_tokens=False)
        encoded = []
        for encoding, reading in zip(encodings, readings, strict=True):
            ids, offsets = np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)
            if reading.origins is None:
                encoded.append(EncodedText(ids, offsets, reading.text))
            else:
                ends = np.append(reading.origins, len(reading.origins) and reading.origins[-1] + 1)
                before = np.stack([ends[offsets[:, 0]], ends[np.maximum(offsets[:, 1] - 1, 0)] + 1], axis=1)
                encoded.append(EncodedText(ids, before, reading.text, reading.said, offsets))
        return encoded

    def pieces(self, text: EncodedText) -> list[NDArray[np.int32]]:
        """The ids of each of its blocks."""
        return [text.ids[start : start + self.blocks.tokens] for start in block_starts(len(text), self.blocks).tolist()]

    def rows(self, pieces: Sequence[NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
        """(B, T) ids of pieces of at most one block each, with special tokens, padded with 0; and (B,) lengths."""
        rows = [np.concatenate([self._before, piece, self._after]).astype(np.int64) for piece in pieces]
        return torch.from_numpy(padded(rows)), torch.tensor([len(row) for row in rows], dtype=torch.int64)
