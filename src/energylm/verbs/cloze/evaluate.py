"""Judged sets that any scorer can be tried on: `energylm evaluate blimp`, minimal pairs.

Does the grammatical sentence of a pair score higher? Accuracy by paradigm, with Wilson's intervals. The mean over
paradigms weighs them alike; its interval treats the paradigms as given and their pairs as drawn. A tie is no success.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from energylm.config.base import Strings
from energylm.config.cloze import Normalise, ScorerConfig
from energylm.config.environment import data_folder
from energylm.data.sentence_tasks import MinimalPair, read_blimp
from energylm.errors import DataError, extra
from energylm.estimators.discrimination import Interval
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import progress
from energylm.records import LOCAL, Record
from energylm.report.report import Numbers, write_report
from energylm.tables import Cell, Table
from energylm.verbs.cloze.score import ScoringModel, check_scorer
from energylm.verbs.verb import Positional, Verb

DATA = "data:"  # the folder that ENERGYLM_DATA names
PAIRS_AT_ONCE = 128
NORMAL_95 = 1.959964
COLUMNS = ("paradigm", "phenomenon", "pairs", "accuracy", "from", "to", "ties")


@dataclass(frozen=True)
class Paradigm(Record):
    name: str
    phenomenon: str
    pairs: int
    right: int
    tied: int

    computed = ("accuracy",)

    @property
    def accuracy(self) -> Interval:
        with extra("rerank"):
            from scipy.stats import binomtest

        ends = binomtest(self.right, self.pairs).proportion_ci(method="wilson")
        return Interval(self.right / self.pairs, float(ends.low), float(ends.high))


@dataclass(frozen=True)
class MinimalPairsResult(Record):
    paradigms: tuple[Paradigm, ...]
    convention: str
    seconds: float
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("mean", "pairs", "pairs_per_second")

    @property
    def mean(self) -> Interval:
        """Over paradigms, each with the same weight."""
        shares = [paradigm.right / paradigm.pairs for paradigm in self.paradigms]
        counts = [paradigm.pairs for paradigm in self.paradigms]
        variance = sum(share * (1 - share) / count for share, count in zip(shares, counts, strict=True))
        value, half = sum(shares) / len(shares), NORMAL_95 * math.sqrt(variance) / len(shares)
        return Interval(value, max(0.0, value - half), min(1.0, value + half))

    @property
    def pairs(self) -> int:
        return sum(paradigm.pairs for paradigm in self.paradigms)

    @property
    def pairs_per_second(self) -> float:
        return self.pairs / max(self.seconds, 1e-9)

    @property
    def table(self) -> Table:
        ordered = sorted(self.paradigms, key=lambda paradigm: (paradigm.phenomenon, paradigm.name))
        rows = [_row(each.name, each.phenomenon, each.pairs, each.accuracy, each.tied) for each in ordered]
        tied = sum(paradigm.tied for paradigm in self.paradigms)
        total = _row("mean of paradigms", "", self.pairs, self.mean, tied)
        return Table(COLUMNS, [*rows, total], convention=self.convention)

    def summary(self) -> str:
        return f"mean accuracy {self.mean} over {len(self.paradigms)} paradigms; {self.pairs_per_second:,.1f} pairs/s"


def _row(name: str, phenomenon: str, pairs: int, accuracy: Interval, tied: int) -> list[Cell]:
    return [name, phenomenon, pairs, accuracy.value, accuracy.lower, accuracy.upper, tied]


class EvaluateBlimp(Verb, ScorerConfig):
    """Minimal pairs: how often does the grammatical sentence score higher? By paradigm, with intervals.

    Any file of JSON lines with `sentence_good`, `sentence_bad` and `UID` (the paradigm) will do (BLiMP, Warstadt et al.
    2020).
    """

    examples = (
        "energylm evaluate blimp smollm2-135m --limit 100 --output out/blimp",
        "energylm evaluate blimp runs/electric/model my_pairs.jsonl --json pairs.json",
    )
    writes = "optional"

    model: ScoringModel
    sources: Annotated[Strings, Positional("FILE|FOLDER")] = Field(
        (f"{DATA}blimp",),
        min_length=1,
        description="JSONL files of pairs, or folders of them; data: is the folder that ENERGYLM_DATA names.",
    )
    normalise: Normalise = Field("none", description="Compare scores divided by tokens or words.")
    limit: int | None = Field(None, ge=1, description="Use this many pairs of each paradigm, the first ones.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        groups, kind = self.read_pairs(), check_scorer(self.model, self)
        count = sum(map(len, groups.values()))
        return f"would score {count:,} pairs of {len(groups)} paradigms with {self.model} ({kind})"

    def run(self, job: Job = DEFAULT_JOB) -> MinimalPairsResult:
        """Score all pairs; with an output folder also write a report there."""
        from energylm.bundles.scorer import Scorer

        groups = self.read_pairs()
        scorer = Scorer.from_pretrained(self.model, config=self)
        paradigms, start = [], time.perf_counter()
        with progress("scoring pairs", total=sum(map(len, groups.values())), unit="pair") as bar:
            for name, pairs in groups.items():
                right = tied = 0
                for first in range(0, len(pairs), PAIRS_AT_ONCE):
                    group = pairs[first : first + PAIRS_AT_ONCE]
                    names = [f"{name} pair {number}" for number in range(first + 1, first + 1 + len(group))]
                    for good, bad in scorer.list_scores([[pair.good, pair.bad] for pair in group], names=names):
                        gap = good.normalised(self.normalise) - bad.normalised(self.normalise)
                        right, tied = right + (gap > 0), tied + (gap == 0)
                    bar.advance(len(group), note=name)
                paradigms.append(Paradigm(name, pairs[0].phenomenon, len(pairs), right, tied))
        by = "" if self.normalise == "none" else f" by {self.normalise}"
        result = MinimalPairsResult(
            tuple(paradigms),
            f"share of pairs whose grammatical sentence scores higher{by}, ties counted as wrong; Wilson's 95 % "
            f"interval; {scorer.convention}",
            time.perf_counter() - start,
        )
        if job.output is None:
            return result
        sections = [Numbers("Accuracy by paradigm", result.table)]
        page = write_report(job.output, title=f"Minimal pairs judged by {scorer.name}", sections=sections)
        return replace(result, report=page)

    def read_pairs(self) -> dict[str, list[MinimalPair]]:
        """Pairs by paradigm, `limit` of each at most."""
        groups: dict[str, list[MinimalPair]] = {}
        for file in _files(self.sources):
            for pair in read_blimp(file):
                groups.setdefault(pair.paradigm, []).append(pair)
        return {name: list(islice(pairs, self.limit)) for name, pairs in groups.items()}


def _files(sources: Sequence[str]) -> list[Path]:
    files = []
    for name in sources:
        source = data_folder() / name.removeprefix(DATA) if name.startswith(DATA) else Path(name)
        inside = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
        if not inside or not all(file.is_file() for file in inside):
            raise DataError(f"{source} holds no minimal pairs; give a JSONL file of pairs, or a folder of such files")
        files += inside
    return files
