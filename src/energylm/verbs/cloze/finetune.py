"""An encoder on a task of GLUE or SQuAD, trained and judged in one command: `energylm finetune`.

Metrics and epochs are those of clark2020 (app. C, table 3), optimiser and schedule its training preset
`clark2020/finetune`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.config.base import listed
from energylm.config.cloze import SPANS, TASKS, FinetuneTask, Pooling, SpanConfig, TaskName, TextStyle
from energylm.config.training import CheckpointConfig, TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.verbs.cloze.finetune_report import FinetuneResult, FinetuneSummaryResult

Files = Annotated[tuple[str, ...], BeforeValidator(listed)]


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
    train: Files = Field((), description="A training file, in place of those of the folder.")
    evaluation: Files = Field((), description="An evaluation file, in place of those of the folder.")
    init: str = Field("minilm-l6", description="The encoder: a model folder, a known model or a hub name.")
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

    def run(self, job: Job = DEFAULT_JOB) -> "FinetuneResult":
        from energylm.verbs.cloze.finetuning import finetune

        return finetune(self, job.folder)

    def remarks(self, result: "FinetuneResult") -> list[str]:
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

    def run(self, job: Job = DEFAULT_JOB) -> "FinetuneSummaryResult":
        from energylm.verbs.cloze.finetune_report import summarise

        return summarise(self.models)
