"""Sentence tasks of `energylm finetune`: files → encoded examples → task → metrics and predictions."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from energylm.bundles.task_models import SentenceModel, SentencePrediction, TaskEncoder, sentence_logits
from energylm.config.cloze import CLASSIFICATION, REGRESSION
from energylm.data.examples import Example, held_out, random_part
from energylm.data.sentence_tasks import read_examples, task_files
from energylm.errors import DataError
from energylm.estimators.sentence_metrics import METRICS
from energylm.files import sha256_of_json
from energylm.models.headed_encoder import SequenceClassifier
from energylm.models.presets import count_parameters
from energylm.training.finetune_task import LabelledTexts, SentenceTask
from energylm.verbs.cloze.finetune import Finetune
from energylm.verbs.cloze.finetune_data import JudgedModel


def sentence_files(config: Finetune) -> tuple[list[Path], list[Path]]:
    """The files of training and evaluation examples: those that are named, else those of the folder."""
    train, evaluation = list(map(Path, config.train)), list(map(Path, config.evaluation))
    if config.data is None or (train and evaluation):
        return train, evaluation
    published = task_files(config.task, config.data)
    return train or published[0], evaluation or published[1]


class SentenceData:
    """`finetune_data.TaskData`."""

    def __init__(self, config: Finetune) -> None:
        self.config, self.about = config, config.about
        train, self.evaluation = self._read()
        valid: list[Example] = []
        if config.training.validation.every_steps is not None:
            train, valid = held_out(train, config.validation_share, purpose="validation examples")
        self._refuse_one_class(train)
        model = self.build()
        self.parameters = count_parameters(model.network)
        self.notes: list[str] = []
        self.train = self._encoded(model, train, "training")
        self.valid = self._encoded(model, valid, "validation") if valid else None
        self.judged = self._encoded(model, self.evaluation, "evaluation")
        self.train_size = len(train)
        self.sizes = {"training": len(train), "validation": len(valid), "evaluation": len(self.evaluation)}
        parts = {"train": train, "valid": valid, "evaluation": self.evaluation}
        self.identity: dict[str, Any] = {
            "task": config.task,
            "examples": {
                name: sha256_of_json([[example.first, example.second, example.label] for example in part])
                for name, part in parts.items()
            },
            "max_tokens": model.max_tokens,
            "pooling": model.network.config.pooling,
            "style": config.style,
            "dropout": config.dropout,
        }
        self.baseline = self._baseline(train)

    def build(self) -> SentenceModel:
        config = self.config
        return SentenceModel.from_encoder(
            TaskEncoder.from_pretrained(config.init),
            task=config.task,
            max_tokens=config.max_tokens or self.about.tokens,
            pooling=config.pooling,
            style=config.style,
            dropout=config.dropout,
        )

    def task(self, model: SentenceModel, *, seed: int, **options: Any) -> SentenceTask:
        return SentenceTask(model.network, self.train, self.valid, seed=seed, **options)

    def judge(self, model: SentenceModel, network: nn.Module) -> JudgedModel:
        assert isinstance(network, SequenceClassifier)
        logits_NC = sentence_logits(network, self.judged.texts)
        predictions = model.predictions(logits_NC)
        gold_N = np.array([example.label for example in self.evaluation])
        told_N = np.array([self._number(prediction) for prediction in predictions])
        lines = [
            {"index": index, "gold": self._shown(example.label), **_filled(prediction)}
            for index, (example, prediction) in enumerate(zip(self.evaluation, predictions, strict=True))
        ]
        rows = [f"{line['index']}\t{line.get('label', line.get('score'))}" for line in lines]
        metrics = {name: METRICS[name](gold_N, told_N) for name in self.about.metrics}
        return JudgedModel(metrics, lines, files={"predictions.tsv": "\n".join(["index\tprediction", *rows]) + "\n"})

    def _read(self) -> tuple[list[Example], list[Example]]:
        config = self.config
        train, evaluation = (read_examples(config.task, files) for files in sentence_files(config))
        return (
            random_part(train, config.train_examples, purpose="training examples"),
            random_part(evaluation, config.evaluation_examples, purpose="evaluation examples"),
        )

    def _refuse_one_class(self, train: Sequence[Example]) -> None:
        if self.about.kind != CLASSIFICATION:
            return
        counts = Counter(example.label for example in train)
        if len(counts) < 2:
            [only] = counts
            raise DataError(
                f"all {len(train):,} training examples of {self.config.task} are {self._shown(only)!r}; a classifier "
                "needs at least two classes: give more examples, or raise train_examples"
            )

    def _encoded(self, model: SentenceModel, examples: Sequence[Example], part: str) -> LabelledTexts:
        texts = model.encode([example.first for example in examples], [example.second for example in examples])
        if texts.cut:
            self.notes.append(
                f"{texts.cut:,} of {len(texts):,} {part} texts were cut to {model.max_tokens} tokens, the longest has "
                f"{texts.longest:,}"
            )
        labels_N = torch.tensor([example.label for example in examples])
        return LabelledTexts(texts, labels_N / self.about.highest if self.about.kind == REGRESSION else labels_N.long())

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


def _filled(prediction: SentencePrediction) -> dict[str, Any]:
    """What the prediction has: a class with probabilities, or a score."""
    return {name: value for name, value in prediction.to_json().items() if value is not None}
