"""Texts and pairs of texts as an encoder was trained to read them: framed, cut to what it holds.

    [CLS] A [SEP]     [CLS] A [SEP] B [SEP]      where the tokenizer has such a frame of its own
    ⟨end⟩ A ⟨end⟩     ⟨end⟩ A ⟨end⟩ B ⟨end⟩      where it has none: end-of-text is the only mark such an encoder knows

Of a pair that is too long, the longer text loses tokens from its end until both fit. What was cut is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energylm.data.tokenizer import end_token_id, plain_encoder
from energylm.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class EncodedTexts:
    """`second_starts` is the place of the second text's first token (the length, where there is none): from there on
    token types are 1."""

    ids: list[NDArray[np.int64]]
    second_starts: NDArray[np.int64]
    cut: int  # texts or pairs that lost tokens
    longest: int  # tokens of the longest before cutting

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(one) for one in self.ids], dtype=np.int64)


class PairEncoder:
    """`starts_with_mark` tells whether the first position is a mark of the tokenizer's own, such as [CLS]."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, max_tokens: int) -> None:
        self._encoder, self.max_tokens = plain_encoder(tokenizer), max_tokens
        before, _, after = _frame(self._encoder.encode("a", add_special_tokens=True))
        self.starts_with_mark = bool(before)
        self._single = (before, after) if before or after else ((end_token_id(tokenizer),),) * 2
        before, between, after = _frame(self._encoder.encode("a", "b", add_special_tokens=True))
        if not between:  # a frame for one text only, or none
            before, between, after = self._single[0], self._single[1], self._single[1]
        self._pair = (before, between, after)
        if max_tokens < self.pair_marks + 2:
            raise ConfigError(f"max_tokens is {max_tokens}, too few for two texts and {self.pair_marks} marks")

    @property
    def pair_marks(self) -> int:
        """Tokens of the frame around a pair."""
        return sum(map(len, self._pair))

    def encode(self, firsts: Sequence[str], seconds: Sequence[str] | None = None) -> EncodedTexts:
        first_ids = [one.ids for one in self.bare(firsts)]
        if seconds is None:
            room = self.max_tokens - sum(map(len, self._single))
            before, after = self._single
            ids = [np.array([*before, *one[:room], *after], dtype=np.int64) for one in first_ids]
            lengths = np.array([len(one) for one in ids], dtype=np.int64)
            sizes = [len(one) for one in first_ids]
            marks = sum(map(len, self._single))
        else:
            room = self.max_tokens - self.pair_marks
            pairs = list(zip(first_ids, (one.ids for one in self.bare(seconds)), strict=True))
            framed = [self.framed_pair(*_shortened(*pair, room=room)) for pair in pairs]
            ids, lengths = [one[0] for one in framed], np.array([one[1] for one in framed], dtype=np.int64)
            sizes = [len(first) + len(second) for first, second in pairs]
            marks = self.pair_marks
        longest = marks + max(sizes, default=0)
        return EncodedTexts(ids, lengths, cut=sum(size > room for size in sizes), longest=longest)

    def bare(self, texts: Sequence[str]) -> "list[Encoding]":
        """Encodings without any frame, with the places of their tokens in the text."""
        return self._encoder.encode_batch(list(texts), add_special_tokens=False)

    def framed_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[NDArray[np.int64], int]:
        """The ids of a pair that fits, and the place of the second text's first token."""
        before, between, after = self._pair
        start = len(before) + len(first) + len(between)
        return np.array([*before, *first, *between, *second, *after], dtype=np.int64), start


def padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(B, T) rows with zeros past their ends."""
    result = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in zip(result, rows, strict=True):
        place[: len(row)] = row
    return result


def _shortened(first: list[int], second: list[int], *, room: int) -> tuple[list[int], list[int]]:
    """Both texts within `room` tokens; the longer one gives way, both equally once they are equally long."""
    over = len(first) + len(second) - room
    if over <= 0:
        return first, second
    shorter = min(len(first), len(second), room // 2)
    if len(first) > len(second):
        return first[: room - shorter], second[:shorter]
    return first[:shorter], second[: room - shorter]


def _frame(encoding: "Encoding") -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The ids before the first text, between the two, and after the last."""
    owners = encoding.sequence_ids
    own = [place for place, owner in enumerate(owners) if owner is not None]
    start, end = own[0], own[-1] + 1
    between = tuple(encoding.ids[place] for place in range(start, end) if owners[place] is None)
    return tuple(encoding.ids[:start]), between, tuple(encoding.ids[end:])
