"""Span tasks of `energylm finetune` (SQuAD): files → windows → task → exact match, F1 and predictions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.task_models import SpanModel, TaskEncoder
from energylm.data.examples import held_out, random_part
from energylm.data.squad import NOWHERE, Question, SpanWindow, read_squad
from energylm.errors import DataError
from energylm.estimators.squad_metrics import Answered, by_answerability, squad_metrics
from energylm.files import sha256_of_json
from energylm.models.presets import count_parameters
from energylm.training.finetune_task import SpanTask
from energylm.verbs.cloze.finetune import Finetune
from energylm.verbs.cloze.finetune_data import JudgedModel

SHOWN = 3  # identifiers of questions that are left out
FILES = {
    "squad1": ("train-v1.1.json", "dev-v1.1.json"),
    "squad2": ("train-v2.0.json", "dev-v2.0.json"),
}


def span_files(config: Finetune) -> tuple[list[Path], list[Path]]:
    """The files of training and evaluation questions: those that are named, else those of the folder."""
    train, evaluation = (Path(config.data or ".") / name for name in FILES[config.task])
    return list(map(Path, config.train)) or [train], list(map(Path, config.evaluation)) or [evaluation]


class SpanData:
    """`finetune_data.TaskData`."""

    def __init__(self, config: Finetune) -> None:
        self.config, self.has_unanswerable = config, config.task == "squad2"
        self.notes: list[str] = []
        train, self.evaluation = self._read()
        valid: list[Question] = []
        if config.training.validation.every_steps is not None:
            train, valid = held_out(train, config.validation_share, purpose="validation examples")
        model = self.build()
        self.parameters = count_parameters(model.network)
        self.train = self._windows(model, train, "training", taught=True)
        self.valid = self._windows(model, valid, "validation", taught=True) if valid else []
        self.judged = self._windows(model, self.evaluation, "evaluation")
        if not any(window.start != NOWHERE for window in self.train):
            raise DataError("no training window holds an answer; raise max_tokens, or give other questions")
        self.train_size = len(self.train)
        self.sizes = {
            "training": len(train),
            "training windows": len(self.train),
            "validation": len(valid),
            "evaluation": len(self.evaluation),
        }
        parts = {"train": train, "valid": valid, "evaluation": self.evaluation}
        self.identity: dict[str, Any] = {
            "task": config.task,
            "questions": {
                name: sha256_of_json([[asked.question, asked.context, asked.answers] for asked in part])
                for name, part in parts.items()
            },
            "max_tokens": model.max_tokens,
            "spans": config.spans.model_dump(mode="json"),
            "dropout": config.dropout,
        }
        self.baseline = self._baseline()

    def build(self) -> SpanModel:
        config = self.config
        return SpanModel.from_encoder(
            TaskEncoder.from_pretrained(config.init),
            task=config.task,
            max_tokens=config.max_tokens or config.about.tokens,
            config=config.spans,
            dropout=config.dropout,
        )

    def task(self, model: SpanModel, *, seed: int, **options: Any) -> SpanTask:
        weight = self.config.spans.answerable_weight if self.has_unanswerable else 0.0
        return SpanTask(model.network, self.train, self.valid, answerable_weight=weight, seed=seed, **options)

    def judge(self, model: SpanModel, network: nn.Module) -> JudgedModel:
        answers = model.answers(self.evaluation, self.judged)
        threshold = self.config.spans.threshold if self.has_unanswerable else None
        answered = [
            Answered(told.span, [text for text, _ in question.answers], told.no_answer_log_odds)
            for question, told in zip(self.evaluation, answers, strict=True)
        ]
        lines = [
            {"id": question.identifier, "gold": [text for text, _ in question.answers], **told.to_json()}
            for question, told in zip(self.evaluation, answers, strict=True)
        ]
        official = {line["id"]: line["text"] for line in lines}
        files = {"predictions.json": json.dumps(official, ensure_ascii=False, indent=1) + "\n"}
        parts = {} if threshold is None else dict(by_answerability(answered, threshold=threshold))
        return JudgedModel(squad_metrics(answered, threshold=threshold), lines, files=files, parts=parts)

    def _read(self) -> tuple[list[Question], list[Question]]:
        config = self.config
        train, evaluation = ([asked for path in files for asked in _read(path)] for files in span_files(config))
        if not self.has_unanswerable and any(not asked.answers for asked in (*train, *evaluation)):
            raise DataError("some questions have no answer, which squad1 does not know; take the task squad2")
        misplaced = [asked for asked in train if asked.is_misplaced]
        if misplaced:
            named = ", ".join(asked.identifier for asked in misplaced[:SHOWN])
            more = "" if len(misplaced) <= SHOWN else f" and {len(misplaced) - SHOWN:,} more"
            self.notes.append(
                f"{len(misplaced):,} of {len(train):,} training questions left out, whose answers do not stand at "
                f"their offsets: {named}{more}"
            )
            train = [asked for asked in train if not asked.is_misplaced]
        if not train or not evaluation:
            raise DataError(f"{config.task}: no question is left to learn from, or none to judge")
        return (
            random_part(train, config.train_examples, purpose="training examples"),
            random_part(evaluation, config.evaluation_examples, purpose="evaluation examples"),
        )

    def _windows(
        self, model: SpanModel, questions: Sequence[Question], part: str, *, taught: bool = False
    ) -> list[SpanWindow]:
        encoded = model.encode(questions)
        if encoded.split_contexts:
            self.notes.append(
                f"{encoded.split_contexts:,} of {len(questions):,} {part} contexts are longer than the model's "
                f"{model.max_tokens} tokens and were read in several windows"
            )
        if encoded.cut_questions:
            cut_to = self.config.spans.question_tokens
            self.notes.append(f"{encoded.cut_questions:,} {part} questions were cut to {cut_to} tokens")
        if taught and not self.has_unanswerable:
            return [window for window in encoded.windows if window.start != NOWHERE]
        return encoded.windows

    def _baseline(self) -> dict[str, float]:
        """Of no answer at all, whatever the question."""
        if not self.has_unanswerable:
            return {}
        silent = [Answered("", [text for text, _ in asked.answers], 0.0) for asked in self.evaluation]
        return squad_metrics(silent)


def _read(path: str | Path) -> list[Question]:
    if not Path(path).is_file():
        raise DataError(f"{path} does not exist; give a file of SQuAD as published, or the folder that holds it")
    return read_squad(path)
