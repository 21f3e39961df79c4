"""Questions with their contexts as windows of tokens that an encoder holds, and answers as places in them.

A context that does not fit beside its question is read in several windows that begin `stride` tokens apart. An answer
is a target in those windows that hold all of it; the others have none (targets −1). Offsets lead from tokens back to
the characters of the context.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energylm.config.cloze import SpanConfig
from energylm.data.formats.squad import Question
from energylm.data.pair_encoding import PairEncoder
from energylm.errors import ConfigError, DataError

NOWHERE = -1
LEAST_ROOM = 8  # tokens of context in a window


@dataclass(frozen=True)
class SpanWindow:
    """`ids` hold the question and `len(offsets)` tokens of the context from `second_start` on. `start` and `end` are
    the first and last token of the answer in `ids`, or both NOWHERE."""

    question: int  # its number
    ids: NDArray[np.int64]
    second_start: int
    offsets: NDArray[np.int64]  # (tokens of context, 2): characters [from, to)
    start: int = NOWHERE
    end: int = NOWHERE

    def text(self, context: str, start: int, end: int) -> str:
        """What stands from token `start` to token `end` of `ids`."""
        first, last = self.offsets[start - self.second_start], self.offsets[end - self.second_start]
        return context[int(first[0]) : int(last[1])]


@dataclass(frozen=True)
class SpanWindows:
    windows: list[SpanWindow]
    cut_questions: int
    split_contexts: int  # that needed several windows


def span_windows(questions: Sequence[Question], encoder: PairEncoder, config: SpanConfig) -> SpanWindows:
    """All windows in the order of their questions; targets by each question's first answer."""
    asked = encoder.bare([one.question for one in questions])
    contexts = {context: None for context in (one.context for one in questions)}
    read = dict(zip(contexts, encoder.bare(list(contexts)), strict=True))
    windows, cut, split = [], 0, 0
    for number, (question, encoding) in enumerate(zip(questions, asked, strict=True)):
        ids, context = encoding.ids[: config.question_tokens], read[question.context]
        if not context.ids:
            raise DataError(f"the context of question {question.identifier} is empty; leave the question out")
        cut += len(encoding.ids) > config.question_tokens
        room = encoder.max_tokens - encoder.pair_marks - len(ids)
        if room < LEAST_ROOM:
            raise ConfigError(
                f"a question of {len(ids)} tokens leaves {room} of {encoder.max_tokens} for its context; raise "
                "max_tokens, lower spans.question_tokens, or take an encoder that holds more"
            )
        starts = list(_window_starts(len(context.ids), room=room, stride=min(config.stride, room)))
        split += len(starts) > 1
        offsets = np.array(context.offsets, dtype=np.int64).reshape(-1, 2)
        answer = answer_tokens(question, offsets)
        for first in starts:
            framed, second_start = encoder.framed_pair(ids, context.ids[first : first + room])
            held = offsets[first : first + room]
            window = SpanWindow(number, framed, second_start, held)
            if answer is not None and first <= answer[0] and answer[1] < first + len(held):
                start, end = (second_start + place - first for place in answer)
                window = SpanWindow(number, framed, second_start, held, start, end)
            windows.append(window)
    return SpanWindows(windows, cut, split)


def answer_tokens(question: Question, offsets: NDArray[np.int64]) -> tuple[int, int] | None:
    """The first and last token of the context that the first answer touches."""
    if not question.answers or question.is_misplaced:
        return None
    text, start = question.answers[0]
    touched = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _window_starts(tokens: int, *, room: int, stride: int) -> Iterator[int]:
    start = 0
    while True:
        yield start
        if start + room >= tokens:
            return
        start += stride
