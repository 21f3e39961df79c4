"""SQuAD 1.1 and 2.0 as published, and its questions with their contexts as windows of tokens that an encoder holds.

    {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": [{"text": …,
               "answer_start": …}], "is_impossible": …}]}]}]}

A context that does not fit beside its question is read in several windows that begin `stride` tokens apart. An answer
is a target in those windows that hold all of it; the others have none (targets −1). Offsets lead from tokens back to
the characters of the context. An answer whose offset does not point at its text cannot be learnt from: `is_misplaced`
finds such questions. For judging, offsets do not matter, texts do.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.config.cloze import SpanConfig
from energylm.data.examples import PairEncoder
from energylm.errors import ConfigError, DataError

NOWHERE = -1
LEAST_ROOM = 8  # tokens of context in a window


@dataclass(frozen=True, slots=True)
class Question:
    """`answers` are texts and their first character in the context; none of them: the question has no answer."""

    identifier: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]

    @property
    def is_misplaced(self) -> bool:
        """Whether some answer does not stand where it is said to."""
        return any(self.context[start : start + len(text)] != text or not text for text, start in self.answers)


def read_squad(path: Path | str) -> list[Question]:
    path = Path(path)
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not JSON ({error}); give a file of SQuAD as published") from None
    if not isinstance(published, dict) or not isinstance(published.get("data"), list):
        raise DataError(f"{path} has no list `data` of articles; give a file of SQuAD as published")
    return list(_questions(published["data"], path))


def _questions(articles: list[Any], path: Path) -> Iterator[Question]:
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    impossible = bool(entry.get("is_impossible", False))
                    answers = () if impossible else tuple((a["text"], int(a["answer_start"])) for a in entry["answers"])
                    if not answers and not impossible:
                        raise DataError(f"{path}: question {entry['id']} has neither an answer nor `is_impossible`")
                    yield Question(str(entry["id"]), entry["question"], paragraph["context"], answers)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no SQuAD file: {error!r} while reading articles, paragraphs and questions"
        ) from None


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
    encodings = encoder.bare([question.question for question in questions])
    contexts = list(dict.fromkeys(question.context for question in questions))
    encoded_contexts = dict(zip(contexts, encoder.bare(contexts), strict=True))
    windows, cut, split = [], 0, 0
    for number, (question, encoding) in enumerate(zip(questions, encodings, strict=True)):
        ids, context = encoding.ids[: config.question_tokens], encoded_contexts[question.context]
        if not context.ids:
            raise DataError(f"the context of question {question.identifier} is empty; leave the question out")
        cut += len(encoding.ids) > config.question_tokens
        room = encoder.max_tokens - encoder.pair_marks - len(ids)
        if room < LEAST_ROOM:
            raise ConfigError(
                f"a question of {len(ids)} tokens leaves {room} of {encoder.max_tokens} for its context; raise "
                "max_tokens, lower spans.question_tokens, or take an encoder that holds more"
            )
        beyond = max(len(context.ids) - room, 0)  # tokens that the first window does not hold
        stride = min(config.stride, room)
        starts = range(0, beyond + stride, stride)
        split += len(starts) > 1
        offsets = np.array(context.offsets, dtype=np.int64).reshape(-1, 2)
        answer = answer_tokens(question, offsets)
        for first in starts:
            framed, second_start = encoder.framed_pair(ids, context.ids[first : first + room])
            held = offsets[first : first + room]
            start, end = NOWHERE, NOWHERE
            if answer is not None and first <= answer[0] and answer[1] < first + len(held):
                start, end = (second_start + index - first for index in answer)
            windows.append(SpanWindow(number, framed, second_start, held, start, end))
    return SpanWindows(windows, cut, split)


def answer_tokens(question: Question, offsets: NDArray[np.int64]) -> tuple[int, int] | None:
    """The first and last token of the context that the first answer touches."""
    if not question.answers or question.is_misplaced:
        return None
    text, start = question.answers[0]
    touched = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None
