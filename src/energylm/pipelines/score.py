"""Score the texts of a file with any model that has a score for them: `energylm score`.

Texts go through in blocks, on any engine, and are read only as fast as they are scored. With `keep` finished blocks
are kept there, so that a killed run goes on where it stopped.

Relations  `score_lm` is about perplexity of causal models, with windows of long files and prefixes that are given; both
           read texts the same way.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import absolute_place
from energylm.bundles.scorer import Scorer, usable_device
from energylm.bundles.scorer_kind import check_method, kind_of
from energylm.bundles.scorer_text import TextScore
from energylm.bundles.weights_identity import model_identity
from energylm.config.engine import HERE, EngineConfig
from energylm.config.score import ScoreConfig, ScorerConfig
from energylm.data.text_files import existing, numbered_texts
from energylm.errors import DataError
from energylm.files import folder_lock
from energylm.jobs.engine import open_engine
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress

TEXTS_AT_ONCE = 256  # sorted by length and scored together; results appear while the rest is still being read


@dataclass(frozen=True)
class ScoreRun:
    config: ScoreConfig
    scores: list[TextScore]
    convention: str
    seconds: float  # of scoring, those of all workers together, whenever that was

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


@dataclass(frozen=True)
class TextBlock:
    texts: list[str]
    names: list[str]  # what messages call them


@dataclass(frozen=True)
class ScoredBlock:
    scores: list[TextScore]
    seconds: float

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ScoredBlock":
        return cls([TextScore.from_json(score) for score in record["scores"]], record["seconds"])


class ScoreWorker:
    def __init__(self, place: str, config: ScorerConfig) -> None:
        self._scorer = Scorer.from_pretrained(place, config=config)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._scorer.name, "convention": self._scorer.convention}

    def __call__(self, block: TextBlock, *, progress: Progress) -> ScoredBlock:
        start = time.perf_counter()
        scores = self._scorer.token_scores(block.texts, names=block.names)
        progress.advance(len(scores))
        return ScoredBlock(scores, time.perf_counter() - start)


def score(
    config: ScoreConfig,
    *,
    on_score: Callable[[TextScore], None] = lambda one: None,
    engine: EngineConfig = HERE,
    keep: Path | None = None,
) -> ScoreRun:
    """Score every text; `on_score` sees each as soon as it is known, in the order of the file."""
    file, place = _file(config), absolute_place(config.model)
    how = config.model_dump(mode="json", include=set(ScorerConfig.model_fields) - {"device"})
    form = BlockForm(asdict, asdict, ScoredBlock.from_json, size=lambda block: len(block.texts))
    kept = KeptBlocks(keep, {"task": "score", "how": how, "model": keep and model_identity(place)}, form)
    scores, seconds = [], 0.0
    with (
        nullcontext() if keep is None else folder_lock(keep),
        open_engine(engine) as opened,
        opened.pool(partial(ScoreWorker, place, config), models=[place]) as pool,
        progress("scoring", unit="text") as bar,
    ):
        convention = pool.facts()["convention"]
        for found in kept.run(pool, _blocks(file, config), progress=bar):
            seconds += found.seconds
            for one in found.scores:
                scores.append(one)
                on_score(one)
    if not scores:
        raise DataError(f"{config.source} holds no text; give a file with one text a line")
    return ScoreRun(config, scores, convention, seconds)


def _blocks(file: Path, config: ScoreConfig) -> Iterator[TextBlock]:
    texts = numbered_texts(file, field=config.field)
    while group := list(islice(texts, TEXTS_AT_ONCE)):
        yield TextBlock([text for _, text in group], [f"{config.source} line {number}" for number, _ in group])


def check_inputs(config: ScoreConfig) -> str:
    """Find the file and the model without loading it; what would be done, in words."""
    _file(config)
    kind = kind_of(config.model)
    check_method(kind, config, name=config.model)
    usable_device(config.device)
    where = "standard input" if config.source == "-" else config.source
    return f"would score every text of {where} with {config.model} ({kind})"


def _file(config: ScoreConfig) -> Path:
    return existing(Path("/dev/stdin" if config.source == "-" else config.source))
