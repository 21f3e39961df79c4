"""The data of a fine-tuning run, whatever the task: the contract that sentence and span tasks keep."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from energylm.bundles.task_models import SentenceModel, SpanModel
from energylm.training.task import Task

FinetunedModel = SentenceModel | SpanModel


@dataclass(frozen=True)
class JudgedModel:
    """A model on the evaluation examples. `files` are further predictions by file name."""

    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    files: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics of kinds of examples


class TaskData(Protocol):
    """Read and encoded once, for all seeds. `task` and `judge` take what `build` gave."""

    train_size: int  # what an epoch goes through: examples or windows
    sizes: dict[str, int]  # for people: examples by part
    notes: list[str]  # what was cut or left out, in words
    identity: dict[str, Any]  # of the data as it is read
    baseline: dict[str, float]  # the metrics of an answer that ignores the input; empty where there is none
    parameters: int

    def build(self) -> FinetunedModel:
        """The encoder under a new head, whose weights come from torch's global generator."""
        ...

    def task(self, model: Any, *, seed: int, **options: Any) -> Task: ...

    def judge(self, model: Any, network: nn.Module) -> JudgedModel: ...
