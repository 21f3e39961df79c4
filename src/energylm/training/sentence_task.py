"""Fine-tuning an encoder on sentences or pairs: cross-entropy of classes, or squared error of a score.

    L = −log softmax(logits)[class]                        classification
    L = (output − score / highest)²                        regression: the output lies between 0 and 1

clark2020 app. B: a linear layer is all that is added to the encoder.

Relations  `models.sequence_classifier` is the network, `bundles.sentence_model` the texts and folders around it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from energylm.bundles.sentence_model import encoder_inputs, sentence_logits
from energylm.data.examples import ExampleBatches
from energylm.data.pair_encoding import EncodedTexts
from energylm.models.sequence_classifier import SequenceClassifier
from energylm.objectives.cross_entropy import cross_entropy_sum
from energylm.training.task import Batch, Share, Sums


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
        self._save_model = save_model

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
        part = EncodedTexts([texts.ids[place] for place in own], texts.second_starts[own], cut=0, longest=0)
        assert isinstance(model, SequenceClassifier)
        loss, right, count = (float(one) for one in judged(sentence_logits(model, part), self.valid.labels_N[own]))
        return {"loss": (loss, count)} | ({} if self.train.is_regression else {"accuracy": (right, count)})

    def save(self, model: nn.Module, folder: Path) -> None:
        self._save_model(model, folder)


def judged(logits_BC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss, how many of the likeliest classes are right (0 for scores), and the count, each ()."""
    count = torch.tensor(float(len(labels_B)), device=logits_BC.device)
    if labels_B.is_floating_point():
        return (logits_BC[:, 0].float() - labels_B).square().sum(), torch.zeros_like(count), count
    return cross_entropy_sum(logits_BC, labels_B), (logits_BC.argmax(-1) == labels_B).sum().float(), count
