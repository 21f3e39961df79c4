"""SQuAD 1.1 and 2.0 as published: one JSON file of articles, paragraphs and questions with answers by their offsets.

    {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": [{"text": …,
               "answer_start": …}], "is_impossible": …}]}]}]}

An answer whose offset does not point at its text cannot be learnt from: `misplaced` finds such questions. For judging,
offsets do not matter, texts do.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.errors import DataError


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
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not JSON ({error}); give a file of SQuAD as published") from None
    if not isinstance(found, dict) or not isinstance(found.get("data"), list):
        raise DataError(f"{path} has no list `data` of articles; give a file of SQuAD as published")
    return list(_questions(found["data"], path))


def _questions(articles: list[Any], path: Path) -> Iterator[Question]:
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    impossible = bool(asked.get("is_impossible", False))
                    answers = () if impossible else tuple((a["text"], int(a["answer_start"])) for a in asked["answers"])
                    if not answers and not impossible:
                        raise DataError(f"{path}: question {asked['id']} has neither an answer nor `is_impossible`")
                    yield Question(str(asked["id"]), asked["question"], paragraph["context"], answers)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no SQuAD file: {error!r} while reading articles, paragraphs and questions"
        ) from None
