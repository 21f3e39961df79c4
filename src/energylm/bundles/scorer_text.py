"""Texts as a scorer reads them, and what it says of them: tokens with their words, casing, windows, scores.

A word is what stands between white space. Scores of tokens add up to those of words, and these to that of the text.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Tokenizer

from energylm.config.cloze import Casing, Normalise, Per
from energylm.errors import ConfigError
from energylm.records import Record

NO_WORD = -1  # an end-of-sequence token
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Reading:
    """A text's tokens: ids, what each writes, which word it belongs to, and which unit of the tokenizer."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    units: tuple[int, ...]  # as the tokenizer splits before it cuts into pieces: punctuation is a unit of its own

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written: no token, or an end-of-sequence token alone."""
        return all(word == NO_WORD for word in self.words)

    def cut(self, start: int, stop: int) -> "Reading":
        span = slice(start, stop)
        return Reading(self.ids[span], self.pieces[span], self.words[span], self.units[span])

    def with_end(self, token_id: int, piece: str, *, at_the_end: bool) -> "Reading":
        """The same with an end-of-sequence token, which stands first for models that read from the right."""
        end = Reading((token_id,), (piece,), (NO_WORD,), (NO_WORD,))
        first, second = (self, end) if at_the_end else (end, self)
        return Reading(
            first.ids + second.ids,
            first.pieces + second.pieces,
            first.words + second.words,
            first.units + second.units,
        )


def read_text(encoder: Tokenizer, text: str) -> Reading:
    """The tokens of `text` without special tokens; `encoder` is a `data.tokenizer.plain_encoder`. White space alone is
    no text: it has no tokens."""
    encoded = encoder.encode(text if text.strip() else "", add_special_tokens=False)
    # White space belongs to the word after it, at the end of the text to the last: the word that ends after a token's
    # first character is the token's.
    ends = [word.end() for word in _WORD.finditer(text)]
    last = max(len(ends) - 1, 0)
    words = [min(bisect_right(ends, start), last) for start, _ in encoded.offsets]
    units = [index if unit is None else unit for index, unit in enumerate(encoded.word_ids)]
    pieces = [text[start:stop] for start, stop in encoded.offsets]
    return Reading(tuple(encoded.ids), tuple(pieces), tuple(words), tuple(units))


def recased(text: str, casing: Casing) -> str:
    match casing:
        case "keep":
            return text
        case "lower":
            return text.lower()
        case "upper":
            return text.upper()
        case "sentence":
            words = [_with_capital_i(word) for word in text.lower().split(" ")]
            written = " ".join(words)
            return written[:1].upper() + written[1:]


def _with_capital_i(word: str) -> str:
    return "I" + word[1:] if word == "i" or word.startswith("i'") else word


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop` are read, `first` to `last` of them are scored."""

    start: int
    stop: int
    first: int
    last: int


def windows(length: int, limit: int | None, *, reads: str) -> list[Window]:
    """Windows of `limit` tokens that overlap by half and score every token once.

    `reads` is "left-to-right", "right-to-left" or "both": a token is scored in the window that shows most of what the
    model looks at: at least half a window on the side that it reads, a quarter on either side if it reads both.
    """
    if limit is None or length <= limit:
        return [Window(0, length, 0, length)]
    step = max(1, limit // 2)
    starts = [*range(0, length - limit, step), length - limit]
    # Between two neighbours, tokens before the border belong to the left window, the others to the right one.
    borders = []
    for left, right in pairwise(starts):
        overlap = left + limit - right
        own = {"left-to-right": overlap, "right-to-left": 0, "both": (overlap + 1) // 2}[reads]
        borders.append(right + own)
    firsts, lasts = [0, *borders], [*borders, length]
    return [Window(start, start + limit, first, last) for start, first, last in zip(starts, firsts, lasts, strict=True)]


@dataclass(frozen=True)
class ScoredText(Record):
    """A text's score as it is shown: divided by its tokens or words if asked, and in as much detail as asked."""

    text: str
    score: float
    tokens: int
    words: int
    windows: int | None = None  # where the text was longer than the model
    word_scores: tuple[tuple[str, float], ...] | None = None
    token_scores: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True)
class TextScore(Record):
    """What a scorer says of one text; natural logarithms, higher = better."""

    text: str
    score: float
    token_scores: tuple[float, ...]
    pieces: tuple[str, ...]  # what each token writes
    words: tuple[str, ...]
    word_of_token: tuple[int, ...]
    windows: int = 1  # more than one where the text was longer than the model

    @property
    def tokens(self) -> int:
        return len(self.token_scores)

    @property
    def word_scores(self) -> tuple[float, ...]:
        """A score for each word; an end-of-sequence token belongs to none."""
        parts: list[list[float]] = [[] for _ in self.words]
        for word, score in zip(self.word_of_token, self.token_scores, strict=True):
            if word != NO_WORD:
                parts[word].append(score)
        return tuple(math.fsum(part) for part in parts)

    def after(self, words: int) -> float:
        """The score of all but the first `words` words, given these."""
        pairs = zip(self.word_of_token, self.token_scores, strict=True)
        return math.fsum(score for word, score in pairs if word == NO_WORD or word >= words)

    def normalised(self, by: Normalise) -> float:
        counts = {"none": 1, "token": self.tokens, "word": len(self.words)}
        if by not in counts:
            raise ConfigError(f"normalise {by!r} came, expected one of {', '.join(counts)}")
        return self.score / counts[by]

    def shown(self, *, per: Per = "token", normalise: Normalise = "none") -> ScoredText:
        return ScoredText(
            text=self.text,
            score=self.normalised(normalise),
            tokens=self.tokens,
            words=len(self.words),
            windows=self.windows if self.windows > 1 else None,
            word_scores=None if per == "sentence" else tuple(zip(self.words, self.word_scores, strict=True)),
            token_scores=tuple(zip(self.pieces, self.token_scores, strict=True)) if per == "token" else None,
        )


def each_alone(
    token_scores: Callable[[Sequence[Reading]], list[list[float]]], lists: Sequence[Sequence[Reading]]
) -> list[list[list[float]]]:
    """Scores of the members of lists, for scorers that gain nothing from what the members share."""
    flat = iter(token_scores([reading for readings in lists for reading in readings]))
    return [[next(flat) for _ in readings] for readings in lists]


def text_score(text: str, reading: Reading, scores: Sequence[float], *, read_in: int) -> TextScore:
    return TextScore(
        text=text,
        score=math.fsum(scores),
        token_scores=tuple(scores),
        pieces=reading.pieces,
        words=tuple(text.split()),
        word_of_token=reading.words,
        windows=read_in,
    )
