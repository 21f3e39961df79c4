"""Examples of a task: one text or two with a label, as an encoder was trained to read them, in the order of training.

    [CLS] A [SEP]     [CLS] A [SEP] B [SEP]      where the tokenizer has such a frame of its own
    ⟨end⟩ A ⟨end⟩     ⟨end⟩ A ⟨end⟩ B ⟨end⟩      where it has none: end-of-text is the only mark such an encoder knows

Of a pair that is too long, the longer text loses tokens from its end until both fit. What was cut is counted. Random
parts of the examples never change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from energylm.data.tokenizer import end_token_id, plain_encoder
from energylm.errors import ConfigError
from energylm.randomness import derive_seed, epoch_order, shuffled

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """`label` is the number of a class, or a score where the task is a regression."""

    first: str
    second: str | None
    label: float


def random_part(items: Sequence[Item], count: int | None, *, purpose: str) -> list[Item]:
    """`count` of the items in their order, chosen by their number and `purpose` alone; all where `count` is None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[index] for index in sorted(_order(len(items), purpose)[:count])]


def held_out(items: Sequence[Item], share: float, *, purpose: str) -> tuple[list[Item], list[Item]]:
    """(the rest, a random `share` of the items, at least one); two parts that never change."""
    order = _order(len(items), purpose)
    chosen = set(order[: max(1, round(share * len(items)))])
    rest = [item for index, item in enumerate(items) if index not in chosen]
    return rest, [item for index, item in enumerate(items) if index in chosen]


def _order(size: int, purpose: str) -> list[int]:
    order: list[int] = shuffled(np.arange(size, dtype=np.int64), size, seed=derive_seed(0, purpose)).tolist()
    return order


class ExampleBatches:
    """Which examples make up the batch of update 1, 2, …: each epoch in a random order of its own, those of a batch in
    order of their length, so that micro-batches waste little on padding. A pure function of (seed, update)."""

    def __init__(self, lengths: NDArray[np.int64], *, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = lengths, batch, derive_seed(seed, "example order")

    def rows(self, step: int) -> NDArray[np.int64]:
        """(batch,) the examples of update `step`."""
        positions = np.arange((step - 1) * self._batch, step * self._batch, dtype=np.int64)
        _, examples = epoch_order(positions, len(self._lengths), seed=self._seed)
        return examples[np.argsort(self._lengths[examples], kind="stable")]


@dataclass(frozen=True)
class EncodedTexts:
    """`second_starts` is the index of the second text's first token (the length, where there is none): from there on
    token types are 1."""

    ids: list[NDArray[np.int64]]
    second_starts: NDArray[np.int64]
    cut: int  # texts or pairs that lost tokens
    longest: int  # tokens of the longest before cutting

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)


class PairEncoder:
    """`starts_with_mark` tells whether the first position is a mark of the tokenizer's own, such as [CLS]."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, max_tokens: int) -> None:
        self._encoder, self.max_tokens = plain_encoder(tokenizer), max_tokens
        before, _, after = special_tokens_around(self._encoder.encode("a", add_special_tokens=True))
        self.starts_with_mark = bool(before)
        self._single = (before, after) if before or after else ((end_token_id(tokenizer),),) * 2
        before, between, after = special_tokens_around(self._encoder.encode("a", "b", add_special_tokens=True))
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
        first_ids = [encoding.ids for encoding in self.bare(firsts)]
        if seconds is None:
            before, after = self._single
            marks = len(before) + len(after)
            room = self.max_tokens - marks
            framed = [np.array([*before, *ids[:room], *after], dtype=np.int64) for ids in first_ids]
            starts = [len(ids) for ids in framed]
            sizes = [len(ids) for ids in first_ids]
        else:
            marks = self.pair_marks
            room = self.max_tokens - marks
            pairs = list(zip(first_ids, (encoding.ids for encoding in self.bare(seconds)), strict=True))
            framed_pairs = [self.framed_pair(*_shortened(*pair, room=room)) for pair in pairs]
            framed, starts = [ids for ids, _ in framed_pairs], [start for _, start in framed_pairs]
            sizes = [len(first) + len(second) for first, second in pairs]
        return EncodedTexts(
            framed,
            np.array(starts, dtype=np.int64),
            cut=sum(size > room for size in sizes),
            longest=marks + max(sizes, default=0),
        )

    def bare(self, texts: Sequence[str]) -> "list[Encoding]":
        """Encodings without any frame, with the offsets of their tokens in the text."""
        return self._encoder.encode_batch(list(texts), add_special_tokens=False)

    def framed_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[NDArray[np.int64], int]:
        """The ids of a pair that fits, and the index of the second text's first token."""
        before, between, after = self._pair
        start = len(before) + len(first) + len(between)
        return np.array([*before, *first, *between, *second, *after], dtype=np.int64), start


def padded(rows: Sequence[NDArray[np.int64]], *, filler: int = 0) -> NDArray[np.int64]:
    """(B, T) rows with `filler` past their ends."""
    padded_BT = np.full((len(rows), max(map(len, rows), default=0)), filler, dtype=np.int64)
    for padded_T, row in zip(padded_BT, rows, strict=True):
        padded_T[: len(row)] = row
    return padded_BT


def _shortened(first: list[int], second: list[int], *, room: int) -> tuple[list[int], list[int]]:
    """Both texts within `room` tokens; the longer one gives way, both equally once they are equally long."""
    over = len(first) + len(second) - room
    if over <= 0:
        return first, second
    shorter = min(len(first), len(second), room // 2)
    if len(first) > len(second):
        return first[: room - shorter], second[:shorter]
    return first[:shorter], second[: room - shorter]


def special_tokens_around(encoding: "Encoding") -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The ids before the first text, between the two, and after the last."""
    owners = encoding.sequence_ids
    own = [index for index, owner in enumerate(owners) if owner is not None]
    start, end = own[0], own[-1] + 1
    between = tuple(encoding.ids[index] for index in range(start, end) if owners[index] is None)
    return tuple(encoding.ids[:start]), between, tuple(encoding.ids[end:])
