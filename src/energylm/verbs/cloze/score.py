"""A number for every text, from any model that has one: `energylm score`.

Texts go through in blocks, on any engine, read only as fast as they are scored. With an output folder finished blocks
are kept there, so that a killed run goes on where it stopped.

Relations  `lm score` is about perplexity of causal models, with windows of long files and prefixes that are given; both
           read texts the same way. `evaluate` and `rerank` score pairs and lists.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from energylm.bundles.known_models import absolute_place
from energylm.bundles.scorer_text import ScoredText, TextScore
from energylm.config.cloze import Normalise, Per, ScorerConfig
from energylm.data.text_files import STDIN, existing, numbered_texts
from energylm.errors import DataError
from energylm.files import folder_lock
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import Progress, progress
from energylm.records import Record
from energylm.registry import SCORERS
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

TEXTS_AT_ONCE = 256  # sorted by length and scored together; results appear while the rest is still being read
ScoringModel = Annotated[
    str,
    Positional("MODEL"),
    Field(
        description="A model folder, a GGUF file, a known model (`energylm models list`), a hub name, or NAME or "
        "NAME:TEXT of a scorer that was registered."
    ),
]


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


class Score(Verb, ScorerConfig):
    """Score texts: log-likelihood of causal models, pseudo-log-likelihood of masked and cloze models. Higher = better.

    Prints a JSON line a text, in the order of the file; rates and the convention go to stderr. Electric, two-tower and
    ELECTRA-TT models take one pass, masked models one for each token. With --output finished blocks of 256 texts are
    kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm score smollm2-135m sentences.txt",
        "energylm score runs/electric/model sentences.tsv --field sentence --per word",
        "energylm score google-bert/bert-base-uncased texts.jsonl --masking within-word --normalise token",
        'echo "A text to score." | energylm score runs/mlm/model -',
    )
    writes = "optional"
    blocks = True
    apart_from: ClassVar[frozenset[str]] = frozenset({"device", "batch_tokens"})

    model: ScoringModel
    source: Annotated[str, Positional("FILE|-")] = Field(
        "-", description="A text a line, or TSV or JSONL by its ending; - is standard input."
    )
    field: str = Field("text", description="The JSONL field or TSV column that holds the text.")
    per: Per = Field("sentence", description="The finest scores that are printed.")
    normalise: Normalise = Field("none", description="Divide a text's score by its tokens or words.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        existing(self.source)
        kind = check_scorer(self.model, self)
        where = "standard input" if self.source == STDIN else self.source
        return f"would score every text of {where} with {self.model} ({kind})"

    def run(self, job: Job = DEFAULT_JOB) -> ScoreResult:
        """Score every text; `job.emit` gets each as soon as it is known, in the order of the file."""
        from energylm.jobs.engine import open_engine
        from energylm.jobs.kept_blocks import BlockForm, KeptBlocks

        model, output = scorer_place(self.model), job.output
        how = self.model_dump(mode="json", include=set(ScorerConfig.model_fields) - {"device", "batch_tokens"})
        form = BlockForm(asdict, ScoredBlock.to_json, ScoredBlock.from_json, size=lambda block: len(block.texts))
        kept = KeptBlocks(output, {"task": "score", "how": how, "model": output and scorer_identity(model)}, form)
        scores, parts, seconds = [], [], 0.0
        with (
            nullcontext() if output is None else folder_lock(output),
            open_engine(job.engine) as engine,
            engine.pool(partial(ScoreWorker, model, self), models=[model]) as pool,
            progress("scoring", unit="text") as bar,
        ):
            convention = pool.facts()["convention"]
            for block in kept.run(pool, self._blocks(), progress=bar):
                seconds += block.seconds
                for score in block.scores:
                    scores.append(score.shown(per=self.per, normalise=self.normalise))
                    parts.append(score.score)
                    if job.emit is not None:
                        row = {name: value for name, value in scores[-1].to_json().items() if value is not None}
                        job.emit(json.dumps(row, ensure_ascii=False))
        if not scores:
            raise DataError(f"{self.source} holds no text; give a file with one text a line")
        nats_per_token = math.fsum(parts) / sum(score.tokens for score in scores)
        return ScoreResult(convention, self.normalise, nats_per_token, seconds, scores)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.cloze.costs import count_score

        return count_score(self, around)

    def _blocks(self) -> "Iterator[TextBlock]":
        texts = numbered_texts(existing(self.source), field=self.field)
        while group := list(islice(texts, TEXTS_AT_ONCE)):
            yield TextBlock([text for _, text in group], [f"{self.source} line {number}" for number, _ in group])

    def shown(self, result: ScoreResult) -> str:
        return ""  # each line was written as soon as it was known


def scorer_place(model: str) -> str:
    """The same for a process that runs elsewhere: a whole path, a name of the hub, or a scorer's own name."""
    return model if SCORERS.named(model) else absolute_place(model)


def scorer_identity(model: str) -> str:
    """What kept scores are known by."""
    from energylm.bundles.model_folder import model_identity

    return model if SCORERS.named(model) else model_identity(model)


def check_scorer(model: str, config: ScorerConfig) -> str:
    """The kind of a model that can score so, on this machine; no weights are read."""
    from energylm.bundles.devices import usable_device
    from energylm.bundles.scorer import check_method, kind_of

    kind = kind_of(model)
    check_method(kind, config, name=model)
    usable_device(config.device)
    return kind


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
        from energylm.bundles.scorer import Scorer

        self.scorer = Scorer.from_pretrained(model, config=config)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self.scorer.name, "convention": self.scorer.convention}

    def __call__(self, block: TextBlock, *, progress: Progress) -> ScoredBlock:
        start = time.perf_counter()
        scores = self.scorer.token_scores(block.texts, names=block.names)
        progress.advance(len(scores))
        return ScoredBlock(scores, time.perf_counter() - start)
