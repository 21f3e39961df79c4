"""What came of a fine-tuned encoder: medians over seeds beside their spread, every seed, the page, means over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from energylm.estimators.seed_median import SeedMedian
from energylm.files import read_json
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table

RESULT = "finetune.json"  # in the output folder
NAMES = {
    "mcc": "Matthews correlation",
    "accuracy": "accuracy",
    "f1": "F1",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "exact_match": "exact match",
    "best_exact_match": "exact match, best threshold",
    "best_f1": "F1, best threshold",
}


@dataclass(frozen=True)
class SeedOutcome(Record):
    """One seed, trained and judged; metrics in per cent."""

    seed: int
    metrics: dict[str, float]
    parts: dict[str, dict[str, float]]  # metrics of kinds of examples
    steps: int
    best_step: int | None
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class FinetuneResult(Record):
    """`medians` are by metric, the paper's first; `model` is that of the median seed."""

    task: str
    init: str
    metric: str  # the paper's
    medians: dict[str, SeedMedian]
    baseline: dict[str, float]  # of an answer that ignores the text; empty where there is none
    seeds: list[SeedOutcome]
    sizes: dict[str, int]
    notes: list[str]
    convention: str
    folder: Path = field(default=Path(), metadata=LOCAL)
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("median_seed", "steps", "seconds")

    @property
    def median_seed(self) -> int:
        return self.seeds[self.medians[self.metric].index].seed

    @property
    def model(self) -> Path:
        return self.folder / f"seed-{self.median_seed}" / "model"

    @property
    def steps(self) -> int:
        """Of one seed."""
        return self.seeds[0].steps

    @property
    def seconds(self) -> float:
        """Of training all seeds."""
        return sum(seed.seconds for seed in self.seeds)

    @property
    def table(self) -> Table:
        return median_table(self.medians, self.baseline, convention=self.convention)

    def summary(self) -> str:
        best = self.medians[self.metric]
        spread = "" if len(best.values) == 1 else f" ({best.lowest:.1f} to {best.highest:.1f})"
        seeds = f"median of {len(best.values)} seeds" if len(best.values) > 1 else "one seed"
        return f"{self.task} from {self.init}: {NAMES[self.metric]} {best.value:.1f}{spread}, {seeds}"


@dataclass(frozen=True)
class TaskMean(Record):
    """Over tasks, of the medians; in per cent."""

    mean: float
    lowest: float  # of the mean over tasks by seed
    highest: float
    ignoring_text: float  # what the most frequent class would give
    tasks: int


@dataclass(frozen=True)
class FinetuneSummaryResult(Record):
    models: dict[str, TaskMean]


def summarise(models: Mapping[str, Mapping[str, str]]) -> FinetuneSummaryResult:
    """By model: the mean over tasks of the medians, its spread over seeds, and what ignoring the text would give."""
    means = {}
    for model, folders in models.items():
        results = [FinetuneResult.from_json(read_json(Path(folder) / RESULT)) for folder in folders.values()]
        medians = [result.medians[result.metric] for result in results]
        by_seed = [fmean(of_seed) for of_seed in zip(*(median.values for median in medians), strict=True)]
        means[model] = TaskMean(
            mean=fmean(median.value for median in medians),
            lowest=min(by_seed),
            highest=max(by_seed),
            ignoring_text=fmean(result.baseline.get(result.metric, 0.0) for result in results),
            tasks=len(medians),
        )
    return FinetuneSummaryResult(means)


def median_table(medians: Mapping[str, SeedMedian], baseline: Mapping[str, float], *, convention: str) -> Table:
    """The first row is the paper's metric."""
    rows: list[list[Cell]] = [
        [NAMES[name], median.value, median.lowest, median.highest, median.deviation, baseline.get(name)]
        for name, median in medians.items()
    ]
    return Table(["metric", "median", "lowest", "highest", "deviation", "ignoring the text"], rows, convention)


def finetune_sections(
    table: Table,
    seeds: Sequence[SeedOutcome],
    journals: Mapping[int, Sequence[Mapping[str, Any]]],
    *,
    about: str,
) -> list[Section]:
    """The parts of a report; `journals` are the lines with losses, by seed."""
    names = list(seeds[0].metrics)
    columns = ["seed", *(NAMES[name] for name in names), "steps", "seconds"]
    rows: list[list[Cell]] = [
        [each.seed, *(each.metrics[name] for name in names), each.steps, each.seconds] for each in seeds
    ]
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Result", table),
        Numbers("Seeds", Table(columns, rows, convention="the same examples, another head, data order and dropout")),
    ]
    parts: list[list[Cell]] = [
        [each.seed, part, *(metrics[name] for name in ("exact_match", "f1"))]
        for each in seeds
        for part, metrics in each.parts.items()
    ]
    if parts:
        sections.append(Numbers("Questions by kind", Table(["seed", "questions", "exact match", "F1"], parts)))
    lines = [
        Series(f"seed {seed}", [line["step"] for line in journal], [line["loss"] for line in journal])
        for seed, journal in journals.items()
        if journal
    ]
    if lines:
        plot = LinePlot(lines, x_label="step", y_label="training loss")
        sections.append(Plot("Training", plot, alt="The training loss over steps, a line for each seed."))
    return sections
