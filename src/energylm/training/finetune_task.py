"""Fine-tuning an encoder: classes or scores of sentences and pairs, and answers as spans of a context.

    L = −log softmax(logits)[class]                                 SentenceTask, classification
    L = (output − score / highest)²                                 SentenceTask, regression: the output lies in [0, 1]
    L = ½ (−log P(s) − log P(e | s)) + weight · BCE(no answer)      SpanTask; the end e is given the gold start s

A linear layer is all that is added to the encoder of sentences (clark2020 app. B). Of spans, starts and ends are
divided by the windows that hold an answer, answerability by all. Without questions that have none (SQuAD 1.1) there is
no third term, and windows without the answer are left out; with them (SQuAD 2.0) such windows teach that nothing is to
be found there.

Relations  `models.headed_encoder` has both networks, `bundles.task_models` texts, folders and the search for a span.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from energylm.bundles.task_models import encoder_inputs, sentence_logits, window_inputs
from energylm.data.examples import EncodedTexts, ExampleBatches
from energylm.data.squad import NOWHERE, SpanWindow
from energylm.models.headed_encoder import SequenceClassifier, SpanPredictor
from energylm.objectives.cross_entropy import cross_entropy_sum
from energylm.training.task import Batch, Share, Sums, validated


@dataclass(frozen=True)
class LabelledTexts:
    """Encoded texts with their classes (int64), or with their scores from 0 to 1 (float32), (N,)."""

    texts: EncodedTexts
    labels_N: Tensor

    @property
    def is_regression(self) -> bool:
        return self.labels_N.is_floating_point()


class SentenceTask:
    """A `training.task.Task`."""

    loss_weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self,
        network: SequenceClassifier,
        train: LabelledTexts,
        valid: LabelledTexts | None = None,
        *,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid = network, train, valid
        self.batches = ExampleBatches(train.texts.lengths, batch=global_batch, seed=seed)
        self.fingerprint = {"examples": len(train.texts), **(fingerprint or {})}
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        examples = self.batches.rows(step)[rows.start : rows.stop]
        return encoder_inputs(self.train.texts, examples.tolist()) | {"labels_B": self.train.labels_N[examples]}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": len(batch["labels_B"])}

    def tokens(self, batch: Batch) -> int:
        return int(batch["attention_mask"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels_B"}
        loss, right, count = judged(model(**inputs).logits, batch["labels_B"])
        return Sums({"loss": loss}, {} if self.train.is_regression else {"accuracy": (right, count)})

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        if self.valid is None:
            return {}
        own = list(range(share.rank, len(self.valid.texts), share.world))
        texts = self.valid.texts
        part = EncodedTexts([texts.ids[index] for index in own], texts.second_starts[own], cut=0, longest=0)
        assert isinstance(model, SequenceClassifier)
        loss, right, count = (float(value) for value in judged(sentence_logits(model, part), self.valid.labels_N[own]))
        return {"loss": (loss, count)} | ({} if self.train.is_regression else {"accuracy": (right, count)})


def judged(logits_BC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss, how many of the likeliest classes are right (0 for scores), and the count, each ()."""
    count = torch.tensor(float(len(labels_B)), device=logits_BC.device)
    if labels_B.is_floating_point():
        return (logits_BC[:, 0].float() - labels_B).square().sum(), torch.zeros_like(count), count
    return cross_entropy_sum(logits_BC, labels_B), (logits_BC.argmax(-1) == labels_B).sum().float(), count


START, END, ANSWERABLE = "start", "end", "answerable"
_TARGETS = ("start_B", "end_B")


class SpanTask:
    """A `training.task.Task`. `answerable_weight` is 0 where every question has an answer."""

    def __init__(
        self,
        network: SpanPredictor,
        train: Sequence[SpanWindow],
        valid: Sequence[SpanWindow] = (),
        *,
        answerable_weight: float,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        valid_batch: int = 32,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid, self.valid_batch = network, list(train), list(valid), valid_batch
        self.loss_weights: Mapping[str, float] = {START: 0.5, END: 0.5}
        if answerable_weight:
            self.loss_weights = {**self.loss_weights, ANSWERABLE: answerable_weight}
        else:  # in several processes, layers without a gradient would stop the run
            network.answerable_hidden.requires_grad_(False)
            network.answerable.requires_grad_(False)
        lengths = np.array([len(window.ids) for window in self.train], dtype=np.int64)
        self.batches = ExampleBatches(lengths, batch=global_batch, seed=seed)
        self.fingerprint = {"windows": len(self.train), "weights": dict(self.loss_weights), **(fingerprint or {})}
        self.save = save_model

    def batch(self, step: int, rows: range) -> Batch:
        return _batch([self.train[index] for index in self.batches.rows(step)[rows.start : rows.stop]])

    def counts(self, batch: Batch) -> dict[str, float]:
        answered = float((batch["start_B"] != NOWHERE).sum())
        counts = {START: answered, END: answered, ANSWERABLE: float(len(batch["start_B"]))}
        return {name: counts[name] for name in self.loss_weights}

    def tokens(self, batch: Batch) -> int:
        return int(batch["attention_mask"].sum())

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Losses over the windows held out; `loss` is their weighted sum over windows."""
        starts = range(share.rank * self.valid_batch, len(self.valid), share.world * self.valid_batch)
        pieces = [self.valid[first : first + self.valid_batch] for first in starts]
        if not pieces:
            return {}
        numbers = validated(self, model, map(_batch, pieces))
        weighted = sum(weight * numbers[name][0] for name, weight in self.loss_weights.items())
        return numbers | {"loss": (weighted, float(sum(map(len, pieces))))}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        assert isinstance(model, SpanPredictor)
        reading = model.read(**{name: tensor for name, tensor in batch.items() if name not in _TARGETS})
        answered_B = batch["start_B"] != NOWHERE
        start_B1, end_B1 = batch["start_B"].clamp(min=0)[:, None], batch["end_B"].clamp(min=0)[:, None]
        end_BT = model.end_log_probs(reading, start_B1)[:, 0]

        def total(log_prob_BT: Tensor, gold_B1: Tensor) -> Tensor:
            return -log_prob_BT.gather(1, gold_B1)[:, 0].masked_fill(~answered_B, 0.0).sum()

        no_answer_B = (~answered_B).float()
        losses = {
            START: total(reading.start_log_prob_BT, start_B1),
            END: total(end_BT, end_B1),
            ANSWERABLE: binary_cross_entropy_with_logits(reading.no_answer_log_odds_B, no_answer_B, reduction="sum"),
        }
        return Sums({name: losses[name] for name in self.loss_weights})


def _batch(windows: Sequence[SpanWindow]) -> Batch:
    targets = {
        "start_B": torch.tensor([window.start for window in windows]),
        "end_B": torch.tensor([window.end for window in windows]),
    }
    return window_inputs(windows) | targets
