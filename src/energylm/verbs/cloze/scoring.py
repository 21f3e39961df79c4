"""The work of `energylm score`: texts go through in blocks, on any engine, read only as fast as they are scored.

With an output folder finished blocks are kept there, so that a killed run goes on where it stopped.

Relations  `lm score` is about perplexity of causal models, with windows of long files and prefixes that are given; both
           read texts the same way.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import absolute_place
from energylm.bundles.model_folder import model_identity
from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_text import ScoredText, TextScore
from energylm.config.cloze import Normalise, ScorerConfig
from energylm.data.text_files import existing, numbered_texts
from energylm.errors import DataError
from energylm.files import folder_lock
from energylm.jobs.engine import open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress
from energylm.records import Record
from energylm.verbs.cloze.score import Score

TEXTS_AT_ONCE = 256  # sorted by length and scored together; results appear while the rest is still being read


@dataclass(frozen=True)
class ScoreResult(Record):
    convention: str
    normalised_by: Normalise
    nats_per_token: float  # of all texts together
    seconds: float  # of scoring, those of all workers together, whenever that was
    scores: list[ScoredText]  # in the order of the file

    computed = ("texts_per_second", "tokens_per_second")

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
        return (
            f"{len(self.scores):,} texts, {self.tokens:,} tokens, {self.nats_per_token:.4f} nats a token; "
            f"{self.texts_per_second:,.1f} texts/s, {self.tokens_per_second:,.0f} tokens/s; {self.convention}"
        )


@dataclass(frozen=True)
class TextBlock:
    texts: list[str]
    names: list[str]  # what messages call them


@dataclass(frozen=True)
class ScoredBlock(Record):
    scores: list[TextScore]
    seconds: float


class ScoreWorker:
    def __init__(self, model: str, config: ScorerConfig) -> None:
        self._scorer = Scorer.from_pretrained(model, config=config)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._scorer.name, "convention": self._scorer.convention}

    def __call__(self, block: TextBlock, *, progress: Progress) -> ScoredBlock:
        start = time.perf_counter()
        scores = self._scorer.token_scores(block.texts, names=block.names)
        progress.advance(len(scores))
        return ScoredBlock(scores, time.perf_counter() - start)


def score_texts(verb: Score, job: Job) -> ScoreResult:
    """Score every text; `job.emit` gets each as soon as it is known, in the order of the file."""
    file, model, output = existing(verb.source), absolute_place(verb.model), job.output
    how = verb.model_dump(mode="json", include=set(ScorerConfig.model_fields) - {"device"})
    form = BlockForm(asdict, ScoredBlock.to_json, ScoredBlock.from_json, size=lambda block: len(block.texts))
    kept = KeptBlocks(output, {"task": "score", "how": how, "model": output and model_identity(model)}, form)
    scores, parts, seconds = [], [], 0.0
    with (
        nullcontext() if output is None else folder_lock(output),
        open_engine(job.engine) as engine,
        engine.pool(partial(ScoreWorker, model, verb), models=[model]) as pool,
        progress("scoring", unit="text") as bar,
    ):
        convention = pool.facts()["convention"]
        for block in kept.run(pool, _blocks(file, verb), progress=bar):
            seconds += block.seconds
            for whole in block.scores:
                scores.append(whole.shown(per=verb.per, normalise=verb.normalise))
                parts.append(whole.score)
                if job.emit is not None:
                    job.emit(_line(scores[-1]))
    if not scores:
        raise DataError(f"{verb.source} holds no text; give a file with one text a line")
    return ScoreResult(
        convention=convention,
        normalised_by=verb.normalise,
        nats_per_token=math.fsum(parts) / sum(score.tokens for score in scores),
        seconds=seconds,
        scores=scores,
    )


def _line(score: ScoredText) -> str:
    row = {name: value for name, value in score.to_json().items() if value is not None}
    return json.dumps(row, ensure_ascii=False)


def _blocks(file: Path, verb: Score) -> Iterator[TextBlock]:
    texts = numbered_texts(file, field=verb.field)
    while group := list(islice(texts, TEXTS_AT_ONCE)):
        yield TextBlock([text for _, text in group], [f"{verb.source} line {number}" for number, _ in group])
