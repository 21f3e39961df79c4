"""The data of `energylm finetune`: files → examples → what the network reads → metrics and predictions.

`SentenceData` are the tasks of GLUE, `SpanData` those of SQuAD. All of it is read, checked and encoded once, for all
seeds.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from energylm.bundles.task_models import SentenceModel, SentencePrediction, SpanModel, TaskEncoder, sentence_logits
from energylm.config.cloze import CLASSIFICATION, REGRESSION, SPANS
from energylm.data.examples import Example, held_out, random_part
from energylm.data.sentence_tasks import read_examples, task_files
from energylm.data.squad import NOWHERE, Question, SpanWindow, read_squad
from energylm.errors import DataError
from energylm.estimators.task_metrics import METRICS, Answered, by_answerability, squad_metrics
from energylm.files import sha256_of_json
from energylm.models.headed_encoder import SequenceClassifier
from energylm.models.presets import count_parameters
from energylm.training.finetune_task import LabelledTexts, SentenceTask, SpanTask
from energylm.training.task import Task
from energylm.verbs.cloze.finetune import Finetune

FinetunedModel = SentenceModel | SpanModel
SHOWN = 3  # identifiers of questions that are left out
SQUAD_FILES = {"squad1": ("train-v1.1.json", "dev-v1.1.json"), "squad2": ("train-v2.0.json", "dev-v2.0.json")}


def data_files(verb: Finetune) -> tuple[list[Path], list[Path]]:
    """The files of training and evaluation examples: those that are named, else those of the folder."""
    train, evaluation = list(map(Path, verb.train)), list(map(Path, verb.evaluation))
    if verb.data is None or (train and evaluation):
        return train, evaluation
    if verb.about.kind == SPANS:
        first, second = ([Path(verb.data) / name] for name in SQUAD_FILES[verb.task])
    else:
        first, second = task_files(verb.task, verb.data)
    return train or first, evaluation or second


@dataclass(frozen=True)
class JudgedModel:
    """A model on the evaluation examples. `files` are further predictions by file name."""

    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    files: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics of kinds of examples


class TaskData(ABC):
    """`task` and `judge` take what `build` gave."""

    what: ClassVar[str]  # the examples are, in the identity

    def __init__(self, verb: Finetune) -> None:
        self.verb, self.about = verb, verb.about
        self.notes: list[str] = []  # what was cut or left out, in words
        train, evaluation = self._read(*data_files(verb))
        train = random_part(train, verb.train_examples, purpose="training examples")
        self.evaluation = random_part(evaluation, verb.evaluation_examples, purpose="evaluation examples")
        valid: list[Any] = []
        if verb.training.validation.every_steps is not None:
            train, valid = held_out(train, verb.validation_share, purpose="validation examples")
        self._check(train)
        model = self.build()
        self.parameters = count_parameters(model.network)
        self.train = self._encoded(model, train, "training")
        self.valid = self._encoded(model, valid, "validation") if valid else None
        self.judged = self._encoded(model, self.evaluation, "evaluation")
        parts = {"training": train, "validation": valid, "evaluation": self.evaluation}
        self.sizes = {name: len(part) for name, part in parts.items()}  # for people
        self.train_size = len(train)  # what an epoch goes through
        self.identity = {
            "task": verb.task,
            self.what: {name: sha256_of_json([self._content(item) for item in part]) for name, part in parts.items()},
            "max_tokens": model.max_tokens,
            "dropout": verb.dropout,
            **self._settings(model),
        }
        self.baseline = self._baseline(train)

    @abstractmethod
    def build(self) -> FinetunedModel:
        """The encoder under a new head, whose weights come from torch's global generator."""

    @abstractmethod
    def task(self, model: Any, *, seed: int, **options: Any) -> Task: ...

    @abstractmethod
    def judge(self, model: Any, network: nn.Module) -> JudgedModel: ...

    @abstractmethod
    def _read(self, train: Sequence[Path], evaluation: Sequence[Path]) -> tuple[list[Any], list[Any]]: ...

    @abstractmethod
    def _check(self, train: Sequence[Any]) -> None: ...

    @abstractmethod
    def _encoded(self, model: Any, items: Sequence[Any], part: str) -> Any: ...

    @abstractmethod
    def _content(self, item: Any) -> list[Any]: ...

    @abstractmethod
    def _settings(self, model: Any) -> dict[str, Any]:
        """What else the identity of the data as it is read holds."""

    @abstractmethod
    def _baseline(self, train: Sequence[Any]) -> dict[str, float]:
        """The metrics of an answer that ignores the input; empty where there is none."""


class SentenceData(TaskData):
    what = "examples"

    def build(self) -> SentenceModel:
        verb = self.verb
        return SentenceModel.from_encoder(
            TaskEncoder.from_pretrained(verb.init),
            task=verb.task,
            max_tokens=verb.max_tokens or self.about.tokens,
            pooling=verb.pooling,
            style=verb.style,
            dropout=verb.dropout,
        )

    def task(self, model: SentenceModel, *, seed: int, **options: Any) -> SentenceTask:
        return SentenceTask(model.network, self.train, self.valid, seed=seed, **options)

    def judge(self, model: SentenceModel, network: nn.Module) -> JudgedModel:
        assert isinstance(network, SequenceClassifier)
        predictions = model.predictions(sentence_logits(network, self.judged.texts))
        gold_N = np.array([example.label for example in self.evaluation])
        told_N = np.array([self._number(prediction) for prediction in predictions])
        lines = [  # of a prediction what it has: a class with probabilities, or a score
            {"index": index, "gold": self._shown(example.label)}
            | {name: value for name, value in prediction.to_json().items() if value is not None}
            for index, (example, prediction) in enumerate(zip(self.evaluation, predictions, strict=True))
        ]
        rows = [f"{line['index']}\t{line.get('label', line.get('score'))}" for line in lines]
        metrics = {name: METRICS[name](gold_N, told_N) for name in self.about.metrics}
        return JudgedModel(metrics, lines, files={"predictions.tsv": "\n".join(["index\tprediction", *rows]) + "\n"})

    def _read(self, train: Sequence[Path], evaluation: Sequence[Path]) -> tuple[list[Example], list[Example]]:
        return read_examples(self.verb.task, train), read_examples(self.verb.task, evaluation)

    def _check(self, train: Sequence[Example]) -> None:
        classes = {example.label for example in train}
        if self.about.kind == CLASSIFICATION and len(classes) < 2:
            raise DataError(
                f"all {len(train):,} training examples of {self.verb.task} are {self._shown(classes.pop())!r}; a "
                "classifier needs at least two classes: give more examples, or raise train_examples"
            )

    def _encoded(self, model: SentenceModel, items: Sequence[Example], part: str) -> LabelledTexts:
        texts = model.encode([example.first for example in items], [example.second for example in items])
        if texts.cut:
            self.notes.append(
                f"{texts.cut:,} of {len(texts):,} {part} texts were cut to {model.max_tokens} tokens, the longest has "
                f"{texts.longest:,}"
            )
        labels_N = torch.tensor([example.label for example in items])
        return LabelledTexts(texts, labels_N / self.about.highest if self.about.kind == REGRESSION else labels_N.long())

    def _content(self, item: Example) -> list[Any]:
        return [item.first, item.second, item.label]

    def _settings(self, model: SentenceModel) -> dict[str, Any]:
        return {"pooling": model.network.config.pooling, "style": self.verb.style}

    def _baseline(self, train: Sequence[Example]) -> dict[str, float]:
        """Of the most frequent class, whatever the text."""
        if self.about.kind != CLASSIFICATION:
            return {}
        gold_N = np.array([example.label for example in self.evaluation])
        [(most_frequent, _)] = Counter(example.label for example in train).most_common(1)
        return {name: METRICS[name](gold_N, np.full_like(gold_N, most_frequent)) for name in self.about.metrics}

    def _number(self, prediction: SentencePrediction) -> float:
        if prediction.score is not None:
            return prediction.score
        return float(self.about.labels.index(str(prediction.label)))

    def _shown(self, label: float) -> str | float:
        return label if self.about.kind == REGRESSION else self.about.labels[int(label)]


class SpanData(TaskData):
    what = "questions"

    def __init__(self, verb: Finetune) -> None:
        self.has_unanswerable = verb.task == "squad2"
        super().__init__(verb)
        self.train_size = self.sizes["training windows"] = len(self.train)

    def build(self) -> SpanModel:
        verb = self.verb
        return SpanModel.from_encoder(
            TaskEncoder.from_pretrained(verb.init),
            task=verb.task,
            max_tokens=verb.max_tokens or self.about.tokens,
            config=verb.spans,
            dropout=verb.dropout,
        )

    def task(self, model: SpanModel, *, seed: int, **options: Any) -> SpanTask:
        weight = self.verb.spans.answerable_weight if self.has_unanswerable else 0.0
        return SpanTask(model.network, self.train, self.valid or (), answerable_weight=weight, seed=seed, **options)

    def judge(self, model: SpanModel, network: nn.Module) -> JudgedModel:
        answers = list(zip(self.evaluation, model.answers(self.evaluation, self.judged), strict=True))
        gold = [[text for text, _ in question.answers] for question, _ in answers]
        answered = [
            Answered(told.span, texts, told.no_answer_log_odds) for (_, told), texts in zip(answers, gold, strict=True)
        ]
        lines = [
            {"id": question.identifier, "gold": texts, **told.to_json()}
            for (question, told), texts in zip(answers, gold, strict=True)
        ]
        official = {line["id"]: line["text"] for line in lines}
        files = {"predictions.json": json.dumps(official, ensure_ascii=False, indent=1) + "\n"}
        threshold = self.verb.spans.threshold if self.has_unanswerable else None
        parts = {} if threshold is None else dict(by_answerability(answered, threshold=threshold))
        return JudgedModel(squad_metrics(answered, threshold=threshold), lines, files=files, parts=parts)

    def _read(self, train: Sequence[Path], evaluation: Sequence[Path]) -> tuple[list[Question], list[Question]]:
        missing = next((path for path in (*train, *evaluation) if not path.is_file()), None)
        if missing is not None:
            raise DataError(f"{missing} does not exist; give a file of SQuAD as published, or the folder that holds it")
        learnt, judged = (
            [question for path in files for question in read_squad(path)] for files in (train, evaluation)
        )
        if not self.has_unanswerable and any(not question.answers for question in (*learnt, *judged)):
            raise DataError("some questions have no answer, which squad1 does not know; take the task squad2")
        misplaced = [question for question in learnt if question.is_misplaced]
        if misplaced:
            named = ", ".join(question.identifier for question in misplaced[:SHOWN])
            more = "" if len(misplaced) <= SHOWN else f" and {len(misplaced) - SHOWN:,} more"
            self.notes.append(
                f"{len(misplaced):,} of {len(learnt):,} training questions left out, whose answers do not stand at "
                f"their offsets: {named}{more}"
            )
        return [question for question in learnt if not question.is_misplaced], judged

    def _check(self, train: Sequence[Question]) -> None:
        if not train or not self.evaluation:
            raise DataError(f"{self.verb.task}: no question is left to learn from, or none to judge")

    def _encoded(self, model: SpanModel, items: Sequence[Question], part: str) -> list[SpanWindow]:
        encoded = model.encode(items)
        if encoded.split_contexts:
            self.notes.append(
                f"{encoded.split_contexts:,} of {len(items):,} {part} contexts are longer than the model's "
                f"{model.max_tokens} tokens and were read in several windows"
            )
        if encoded.cut_questions:
            cut_to = self.verb.spans.question_tokens
            self.notes.append(f"{encoded.cut_questions:,} {part} questions were cut to {cut_to} tokens")
        answered = [window for window in encoded.windows if window.start != NOWHERE]
        if part == "training" and not answered:
            raise DataError("no training window holds an answer; raise max_tokens, or give other questions")
        return encoded.windows if part == "evaluation" or self.has_unanswerable else answered

    def _content(self, item: Question) -> list[Any]:
        return [item.question, item.context, item.answers]

    def _settings(self, model: SpanModel) -> dict[str, Any]:
        return {"spans": self.verb.spans.model_dump(mode="json")}

    def _baseline(self, train: Sequence[Question]) -> dict[str, float]:
        """Of no answer at all, whatever the question."""
        if not self.has_unanswerable:
            return {}
        silent = [Answered("", [text for text, _ in question.answers], 0.0) for question in self.evaluation]
        return squad_metrics(silent)
