"""Score the texts of a file with any model that has a score for them: `energylm score`.

Relations  `score_lm` is about perplexity of causal models, with windows of long files and prefixes that are given; both
           read texts the same way.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_kind import check_method, kind_of
from energylm.bundles.scorer_text import TextScore
from energylm.config.score import ScoreConfig
from energylm.errors import DataError
from energylm.pipelines.score_lm import existing, numbered_texts
from energylm.progress import progress

TEXTS_AT_ONCE = 256  # sorted by length and scored together; results appear while the rest is still being read


@dataclass(frozen=True)
class ScoreRun:
    config: ScoreConfig
    scores: list[TextScore]
    convention: str
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(score.tokens for score in self.scores)

    @property
    def texts_per_second(self) -> float:
        return len(self.scores) / max(self.seconds, 1e-9)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def summary(self) -> str:
        total = math.fsum(score.score for score in self.scores)
        return (
            f"{len(self.scores):,} texts, {self.tokens:,} tokens, {total / self.tokens:.4f} nats a token; "
            f"{self.texts_per_second:,.1f} texts/s, {self.tokens_per_second:,.0f} tokens/s; {self.convention}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "convention": self.convention,
            "normalised_by": self.config.normalise,
            "texts_per_second": self.texts_per_second,
            "tokens_per_second": self.tokens_per_second,
            "scores": [one.to_json(per=self.config.per, normalise=self.config.normalise) for one in self.scores],
        }


def score(config: ScoreConfig, *, on_score: Callable[[TextScore], None] = lambda one: None) -> ScoreRun:
    """Score every text; `on_score` sees each as soon as it is known, in the order of the file."""
    file = _file(config)
    scorer = Scorer.from_pretrained(config.model, config=config)
    texts, scores, seconds = numbered_texts(file, field=config.field), [], 0.0
    with progress("scoring", unit="text") as bar:
        while group := list(islice(texts, TEXTS_AT_ONCE)):
            start = time.perf_counter()
            found = scorer.token_scores(
                [text for _, text in group], names=[f"{config.source} line {number}" for number, _ in group]
            )
            seconds += time.perf_counter() - start
            for one in found:
                scores.append(one)
                on_score(one)
            bar.advance(len(group))
    if not scores:
        raise DataError(f"{config.source} holds no text; give a file with one text a line")
    return ScoreRun(config, scores, scorer.convention, seconds)


def check_inputs(config: ScoreConfig) -> str:
    """Find the file and the model without loading it; what would be done, in words."""
    _file(config)
    kind = kind_of(config.model)
    check_method(kind, config, name=config.model)
    where = "standard input" if config.source == "-" else config.source
    return f"would score every text of {where} with {config.model} ({kind})"


def _file(config: ScoreConfig) -> Path:
    return existing(Path("/dev/stdin" if config.source == "-" else config.source))
