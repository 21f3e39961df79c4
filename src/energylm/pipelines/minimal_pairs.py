"""Does the grammatical sentence of a pair score higher? Accuracy by paradigm: `energylm evaluate blimp`.

Intervals of a paradigm are Wilson's. The mean over paradigms weighs them alike; its interval treats the paradigms as
given and their pairs as drawn. A tie is no success.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_kind import check_method, kind_of
from energylm.config.evaluate import MinimalPairsConfig
from energylm.config.places import data_folder
from energylm.data.formats.blimp import MinimalPair, read_blimp
from energylm.errors import DataError
from energylm.estimators.discrimination import Interval
from energylm.progress import progress
from energylm.report.report import Numbers, write_report
from energylm.tables import Table

PAIRS_AT_ONCE = 128
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Paradigm:
    name: str
    phenomenon: str
    pairs: int
    right: int
    tied: int

    @property
    def accuracy(self) -> Interval:
        from scipy.stats import binomtest

        ends = binomtest(self.right, self.pairs).proportion_ci(method="wilson")
        return Interval(self.right / self.pairs, float(ends.low), float(ends.high))


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.lower, interval.upper


@dataclass(frozen=True)
class MinimalPairsRun:
    paradigms: tuple[Paradigm, ...]
    convention: str
    seconds: float
    report: Path | None = None

    @property
    def mean(self) -> Interval:
        """Over paradigms, each with the same weight."""
        shares = [paradigm.right / paradigm.pairs for paradigm in self.paradigms]
        variance = sum(share * (1 - share) / one.pairs for share, one in zip(shares, self.paradigms, strict=True))
        value, half = sum(shares) / len(shares), NORMAL_95 * math.sqrt(variance) / len(shares)
        return Interval(value, max(0.0, value - half), min(1.0, value + half))

    @property
    def pairs(self) -> int:
        return sum(paradigm.pairs for paradigm in self.paradigms)

    @property
    def table(self) -> Table:
        rows = [
            [one.name, one.phenomenon, one.pairs, *_ends(one.accuracy), one.tied]
            for one in sorted(self.paradigms, key=lambda one: (one.phenomenon, one.name))
        ]
        total = ["mean of paradigms", "", self.pairs, *_ends(self.mean), sum(one.tied for one in self.paradigms)]
        columns = ["paradigm", "phenomenon", "pairs", "accuracy", "from", "to", "ties"]
        return Table(columns, [*rows, total], convention=self.convention)

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean.to_json(),
            "paradigms": self.table.records()[:-1],
            "convention": self.convention,
            "pairs_per_second": self.pairs / max(self.seconds, 1e-9),
        }

    def summary(self) -> str:
        rate = self.pairs / max(self.seconds, 1e-9)
        return f"mean accuracy {self.mean} over {len(self.paradigms)} paradigms; {rate:,.1f} pairs/s"


def judge_minimal_pairs(config: MinimalPairsConfig, *, output: Path | None = None) -> MinimalPairsRun:
    """Score all pairs of `config`; with `output` also write a report there."""
    groups = read_pairs(config)
    scorer = Scorer.from_pretrained(config.model, config=config)
    paradigms, start = [], time.perf_counter()
    with progress("scoring pairs", total=sum(map(len, groups.values())), unit="pair") as bar:
        for name, pairs in groups.items():
            right = tied = 0
            for first in range(0, len(pairs), PAIRS_AT_ONCE):
                group = pairs[first : first + PAIRS_AT_ONCE]
                names = [f"{name} pair {number}" for number in range(first + 1, first + 1 + len(group))]
                for good, bad in scorer.list_scores([[pair.good, pair.bad] for pair in group], names=names):
                    gap = good.normalised(config.normalise) - bad.normalised(config.normalise)
                    right, tied = right + (gap > 0), tied + (gap == 0)
                bar.advance(len(group), note=name)
            paradigms.append(Paradigm(name, pairs[0].phenomenon, len(pairs), right, tied))
    by = "" if config.normalise == "none" else f" by {config.normalise}"
    run = MinimalPairsRun(
        paradigms=tuple(paradigms),
        convention=f"share of pairs whose grammatical sentence scores higher{by}, ties counted as wrong; Wilson's 95 % "
        f"interval; {scorer.convention}",
        seconds=time.perf_counter() - start,
    )
    if output is None:
        return run
    page = write_report(
        output, title=f"Minimal pairs judged by {scorer.name}", sections=[Numbers("Accuracy by paradigm", run.table)]
    )
    return replace(run, report=page)


def check_inputs(config: MinimalPairsConfig) -> str:
    """Read every pair and find the model without loading it; what would be done, in words."""
    groups = read_pairs(config)
    kind = kind_of(config.model)
    check_method(kind, config, name=config.model)
    count = sum(map(len, groups.values()))
    return f"would score {count:,} pairs of {len(groups)} paradigms with {config.model} ({kind})"


def read_pairs(config: MinimalPairsConfig) -> dict[str, list[MinimalPair]]:
    """Pairs by paradigm, `limit` of each at most."""
    groups: dict[str, list[MinimalPair]] = {}
    for file in _files(config.sources or (str(data_folder() / "blimp"),)):
        for pair in read_blimp(file):
            groups.setdefault(pair.paradigm, []).append(pair)
    return {name: list(islice(pairs, config.limit)) for name, pairs in groups.items()}


def _files(sources: Sequence[str]) -> list[Path]:
    files = []
    for source in map(Path, sources):
        found = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
        if not found or not all(file.is_file() for file in found):
            raise DataError(f"{source} holds no minimal pairs; give a JSONL file of pairs, or a folder of such files")
        files += found
    return files
