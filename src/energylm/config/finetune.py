"""Tasks of GLUE and SQuAD that `energylm finetune` knows: kinds, metrics, epochs, classes, how spans are read.

Metrics and epochs are those of clark2020 (app. C, table 3). What the paper takes over from ELECTRA without printing it
(the lengths of inputs and answers, the beam, the weight of answerability) is ELECTRA's. WNLI is left out, as there.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from energylm.config.base import Config

TaskKind = Literal["classification", "regression", "spans"]
TaskName = Literal["cola", "sst2", "mrpc", "sts", "qqp", "mnli", "qnli", "rte", "squad1", "squad2"]
Pooling = Literal["first", "mean"]
TextStyle = Literal["written", "spoken"]  # as corpora have them
CLASSIFICATION: TaskKind = "classification"
REGRESSION: TaskKind = "regression"
SPANS: TaskKind = "spans"
FIRST: Pooling = "first"
MEAN: Pooling = "mean"


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


class SpanConfig(Config):
    """How questions are read and answered (SQuAD)."""

    stride: int = Field(128, ge=1, description="Tokens from the beginning of one window of a long context to the next.")
    question_tokens: int = Field(64, ge=1, description="Longer questions are cut.")
    answer_tokens: int = Field(30, ge=1, description="The longest answer.")
    beam: int = Field(20, ge=1, description="Starts, and ends of each start, that are followed up.")
    hidden_width: int = Field(512, ge=1, description="Of the layers that score ends and answerability.")
    answerable_weight: float = Field(0.5, ge=0, description="Of the answerability loss beside start and end (SQuAD 2).")
    threshold: float = Field(0.0, description="Log-odds of 'no answer' above which no answer is given (SQuAD 2).")
