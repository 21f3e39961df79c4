"""What `energylm finetune` does: a task of GLUE or SQuAD, the encoder it starts from, seeds, epochs, layer-wise decay.

Metrics and epochs are those of clark2020 (app. C, table 3), optimiser and schedule its training preset
`clark2020/finetune`. What the paper takes over from ELECTRA without printing it (the lengths of inputs and answers, the
beam, the weight of answerability) is ELECTRA's. WNLI is left out, as there.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.training import CheckpointConfig, TrainingConfig, ValidationConfig

TaskKind = Literal["classification", "regression", "spans"]
TaskName = Literal["cola", "sst2", "mrpc", "sts", "qqp", "mnli", "qnli", "rte", "squad1", "squad2"]
Pooling = Literal["first", "mean"]
TextStyle = Literal["written", "spoken"]  # as corpora have them
CLASSIFICATION: TaskKind = "classification"
REGRESSION: TaskKind = "regression"
SPANS: TaskKind = "spans"
FIRST: Pooling = "first"
MEAN: Pooling = "mean"
PAPER_SETTINGS = "clark2020/finetune"


@dataclass(frozen=True)
class FinetuneTask:
    """`metrics` are printed, the first of them is the paper's; `labels` are the names of classes 0, 1, …"""

    kind: TaskKind
    metrics: tuple[str, ...]
    epochs: int
    labels: tuple[str, ...] = ()
    has_pairs: bool = True
    highest: float = 1.0  # of a regression's scores, which start at 0

    @property
    def tokens(self) -> int:
        """The most that is read at once (ELECTRA's)."""
        return 512 if self.kind == SPANS else 128


TASKS: dict[TaskName, FinetuneTask] = {
    "cola": FinetuneTask(CLASSIFICATION, ("mcc", "accuracy"), 3, ("unacceptable", "acceptable"), has_pairs=False),
    "sst2": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("negative", "positive"), has_pairs=False),
    "mrpc": FinetuneTask(CLASSIFICATION, ("accuracy", "f1"), 3, ("different", "paraphrase")),
    "sts": FinetuneTask(REGRESSION, ("spearman", "pearson"), 10, highest=5.0),
    "qqp": FinetuneTask(CLASSIFICATION, ("accuracy", "f1"), 3, ("different", "duplicate")),
    "mnli": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("entailment", "neutral", "contradiction")),
    "qnli": FinetuneTask(CLASSIFICATION, ("accuracy",), 3, ("entailment", "not_entailment")),
    "rte": FinetuneTask(CLASSIFICATION, ("accuracy",), 10, ("entailment", "not_entailment")),
    "squad1": FinetuneTask(SPANS, ("exact_match", "f1"), 2),
    "squad2": FinetuneTask(SPANS, ("exact_match", "f1", "best_exact_match", "best_f1"), 2),
}


class FinetuneValidation(ValidationConfig):
    every_steps: int | None = Field(
        None,
        ge=1,
        description="Validate this often on examples held out of training, and keep the best weights; none = the last "
        "weights are judged, as in the paper.",
    )


class FinetuneCheckpoints(CheckpointConfig):
    keep: int = Field(1, ge=1, description="How many of the newest checkpoints stay on disk while a seed is trained.")


class FinetuneTraining(TrainingConfig):
    """The paper's fine-tuning column unless another preset is named; `seed` is the first of the seeds."""

    steps: int | None = Field(None, ge=1, description="Updates; none = what `epochs` of the examples take.")
    validation: FinetuneValidation = FinetuneValidation()
    checkpoint: FinetuneCheckpoints = FinetuneCheckpoints()

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_paper(cls, values: Any) -> Any:
        return {"preset": PAPER_SETTINGS, **values} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _must_be_able_to_end(self) -> Self:
        """Epochs end it."""
        return self


class SpanConfig(Config):
    """How questions are read and answered (SQuAD)."""

    stride: int = Field(128, ge=1, description="Tokens from the beginning of one window of a long context to the next.")
    question_tokens: int = Field(64, ge=1, description="Longer questions are cut.")
    answer_tokens: int = Field(30, ge=1, description="The longest answer.")
    beam: int = Field(20, ge=1, description="Starts, and ends of each start, that are followed up.")
    hidden_width: int = Field(512, ge=1, description="Of the layers that score ends and answerability.")
    answerable_weight: float = Field(0.5, ge=0, description="Of the answerability loss beside start and end (SQuAD 2).")
    threshold: float = Field(0.0, description="Log-odds of 'no answer' above which no answer is given (SQuAD 2).")


class FinetuneConfig(Config):
    """An encoder fine-tuned on a task and judged on its evaluation examples, once for each seed."""

    task: TaskName = Field(description=f"One of {', '.join(TASKS)}.")
    data: str | None = Field(None, description="The folder with the task's published files.")
    train: tuple[str, ...] = Field((), description="Training files, in place of those of the folder.")
    evaluation: tuple[str, ...] = Field((), description="Evaluation files, in place of those of the folder.")
    init: str = Field("minilm-l6", description="The encoder: a model folder, a known model or a hub name.")
    seeds: int = Field(3, ge=1, description="How often it is fine-tuned: seeds training.seed, +1, … (the paper: 10).")
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
    training: FinetuneTraining = FinetuneTraining()

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

    def training_on(self, examples: int, *, seed: int) -> TrainingConfig:
        """The engine's settings: as many steps as the epochs of `examples` take, the first tenth of them warm-up."""
        values = self.training.model_dump()
        steps = self.training.steps or max(1, round(self.chosen_epochs * examples / self.training.global_batch))
        if values["schedule"]["warmup_steps"] is None:
            values["schedule"]["warmup_steps"] = steps // 10
        return TrainingConfig.checked(values | {"seed": seed, "steps": steps}, origin="the training settings")


class FinetuneSummaryConfig(Config):
    """Several models on several tasks, side by side: medians by task and their mean."""

    models: dict[str, dict[str, str]] = Field(
        min_length=1, description="By model and task: the output folder of a fine-tuning."
    )
