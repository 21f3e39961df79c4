"""An encoder on a task of GLUE or SQuAD, trained and judged in one command: `energylm finetune`.

Metrics and epochs are those of clark2020 (app. C, table 3), optimiser and schedule its training preset
`clark2020/finetune`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.base import Strings
from energylm.config.cloze import SPANS, TASKS, FinetuneTask, Pooling, SpanConfig, TaskName, TextStyle
from energylm.config.training import CheckpointConfig, TrainingConfig, ValidationConfig
from energylm.config.vocabulary import ENCODER
from energylm.estimators.task_metrics import SeedMedian
from energylm.files import read_json
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

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
        rows: list[list[Cell]] = [
            [NAMES[name], median.value, median.lowest, median.highest, median.deviation, self.baseline.get(name)]
            for name, median in self.medians.items()
        ]
        columns = ["metric", "median", "lowest", "highest", "deviation", "ignoring the text"]
        return Table(columns, rows, convention=self.convention)

    def summary(self) -> str:
        best = self.medians[self.metric]
        spread = "" if len(best.values) == 1 else f" ({best.lowest:.1f} to {best.highest:.1f})"
        seeds = f"median of {len(best.values)} seeds" if len(best.values) > 1 else "one seed"
        return f"{self.task} from {self.init}: {NAMES[self.metric]} {best.value:.1f}{spread}, {seeds}"

    def sections(self, journals: Mapping[int, Sequence[Mapping[str, Any]]], *, about: str) -> list[Section]:
        """The parts of a report; `journals` are the lines with losses, by seed."""
        names = list(self.seeds[0].metrics)
        columns = ["seed", *(NAMES[name] for name in names), "steps", "seconds"]
        rows: list[list[Cell]] = [
            [each.seed, *(each.metrics[name] for name in names), each.steps, each.seconds] for each in self.seeds
        ]
        sections: list[Section] = [
            Text("What this is", about),
            Numbers("Result", self.table),
            Numbers(
                "Seeds", Table(columns, rows, convention="the same examples, another head, data order and dropout")
            ),
        ]
        parts: list[list[Cell]] = [
            [each.seed, part, *(metrics[name] for name in ("exact_match", "f1"))]
            for each in self.seeds
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


class FinetuneTraining(TrainingConfig):
    """`seed` is the first of the seeds; without `steps` the epochs end it."""

    @model_validator(mode="after")
    def _must_be_able_to_end(self) -> Self:
        """Epochs end it."""
        return self


class Finetune(Verb):
    """Fine-tune an encoder with every seed, judge it, and print the median of the task's metric with its spread.

    CoLA by Matthews correlation, STS by Spearman, SQuAD by exact match and F1, all others by accuracy. Each layer
    learns at 0.8 times the rate of the one above it. Killed runs go on where they stopped when run again.
    """

    examples = (
        "energylm finetune --task cola --data glue --init minilm-l6 --seeds 3 -o runs/cola",
        "energylm finetune --task rte --data glue --init runs/electric/model --pooling mean -o runs/rte-electric",
        "energylm finetune --task squad2 --data squad --init bert-base-uncased -o runs/squad2 --dry-run",
        "energylm finetune --task mrpc --train train.jsonl --evaluation dev.jsonl --set training.micro_batch=8 -o m",
    )
    shortcuts: ClassVar = {
        "seed": "training.seed",
        "batch": "training.global_batch",
        "learning_rate": "training.optimizer.learning_rate",
    }
    writes = "required"

    task: TaskName = Field(description="The task; WNLI is left out, as in the paper.")
    data: str | None = Field(
        None, description="The folder with the task's published files (GLUE's layout or the authors')."
    )
    train: Strings = Field((), description="A training file, in place of those of the folder.")
    evaluation: Strings = Field((), description="An evaluation file, in place of those of the folder.")
    init: str = Field(ENCODER, description="The encoder: a model folder, a known model or a hub name.")
    seeds: int = Field(3, ge=1, description="How often it is fine-tuned: with --seed, the next one, … (the paper: 10).")
    epochs: float | None = Field(
        None, gt=0, description="Passes over the training examples; none = the paper's: 10 rte, sts; 2 squad; 3 others."
    )
    pooling: Pooling | None = Field(
        None,
        description="What a sentence task's linear layer reads: the first position (the paper's) or the mean of all; "
        "none = first where the tokenizer puts a [CLS] there, else mean.",
    )
    style: TextStyle = Field(
        "written",
        description="written: texts as they are; spoken: upper-case words and nothing else, for encoders of such text.",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="Before the output layer; that of the encoder stays its own.")
    max_tokens: int | None = Field(
        None,
        ge=8,
        description="Longer inputs are cut (spans: read in windows); none = 128, squad 512, at most the encoder's own.",
    )
    train_examples: int | None = Field(None, ge=2, description="Train on this many, chosen at random; none = all.")
    evaluation_examples: int | None = Field(None, ge=2, description="Judge this many, chosen at random; none = all.")
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="Of the training examples, held out where training.validation.every_steps is set."
    )
    spans: SpanConfig = SpanConfig()
    # The paper's fine-tuning column. Without validation the last weights are judged, as there.
    training: FinetuneTraining = FinetuneTraining(
        preset="clark2020/finetune",
        steps=None,
        validation=ValidationConfig(every_steps=None),
        checkpoint=CheckpointConfig(keep=1),
    )

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        if self.about.kind == SPANS and self.style != "written":
            raise ValueError(f"{self.task} needs the characters of its contexts, so style must be written")
        if self.data is None and not (self.train and self.evaluation):
            raise ValueError("no data came; give `data` (a folder), or both `train` and `evaluation` (files)")
        return self

    @property
    def about(self) -> FinetuneTask:
        return TASKS[self.task]

    @property
    def chosen_epochs(self) -> float:
        return self.about.epochs if self.epochs is None else self.epochs

    @property
    def all_seeds(self) -> range:
        return range(self.training.seed, self.training.seed + self.seeds)

    def training_on(self, examples: int, *, seed: int) -> TrainingConfig:
        """The engine's settings: as many steps as the epochs of `examples` take, the first tenth of them warm-up."""
        values = self.training.model_dump()
        steps = self.training.steps or max(1, round(self.chosen_epochs * examples / self.training.global_batch))
        if values["schedule"]["warmup_steps"] is None:
            values["schedule"]["warmup_steps"] = steps // 10
        return TrainingConfig.checked(values | {"seed": seed, "steps": steps}, origin="the training settings")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.cloze.finetuning import plan_finetuning

        return plan_finetuning(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> FinetuneResult:
        from energylm.verbs.cloze.finetuning import finetune

        return finetune(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.cloze.costs import count_finetuning

        return count_finetuning(self, around)

    def remarks(self, result: FinetuneResult) -> list[str]:
        return [f"{result.summary()}; {result.report}"]

    def step_content(self) -> Mapping[str, Any]:
        """Of the data the files that are read, by content; of a model its weights."""
        from energylm.bundles.known_models import KNOWN_MODELS
        from energylm.bundles.model_folder import weights_sha256
        from energylm.verbs.cloze.finetuning import data_hashes

        content = self.model_dump(mode="json", exclude={"data"}) | data_hashes(self)
        if self.init in KNOWN_MODELS or (Path(self.init).is_absolute() and Path(self.init).is_dir()):
            content["init"] = f"weights {weights_sha256(self.init)}"
        return content


class FinetuneSummary(Verb):
    """Put several models on several tasks side by side: medians by task and their mean."""

    models: dict[str, dict[str, str]] = Field(
        min_length=1, description="By model and task: the output folder of a fine-tuning."
    )

    def run(self, job: Job = DEFAULT_JOB) -> FinetuneSummaryResult:
        return FinetuneSummaryResult({model: _task_mean(folders) for model, folders in self.models.items()})

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted()


def _task_mean(folders: Mapping[str, str]) -> TaskMean:
    """Over tasks of the medians, with the spread over seeds, and what ignoring the text would give."""
    results = [FinetuneResult.from_json(read_json(Path(folder) / RESULT)) for folder in folders.values()]
    medians = [result.medians[result.metric] for result in results]
    by_seed = [fmean(of_seed) for of_seed in zip(*(median.values for median in medians), strict=True)]
    return TaskMean(
        mean=fmean(median.value for median in medians),
        lowest=min(by_seed),
        highest=max(by_seed),
        ignoring_text=fmean(result.baseline.get(result.metric, 0.0) for result in results),
        tasks=len(medians),
    )
