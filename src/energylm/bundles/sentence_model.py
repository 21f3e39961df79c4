"""A fine-tuned sentence task as people use it: folders, texts, classes or scores. `energylm finetune` makes them.

    SentenceModel.from_pretrained(folder).predict(["A sentence.", …])

The folder also loads with transformers' `AutoModelForSequenceClassification`, once
`models.sequence_classifier.register` has been called. A regression's score is the one output times the
task's highest score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import (
    check_files,
    check_finite,
    new_model_folder,
    quiet_transformers,
    read_manifest,
    write_manifest,
)
from energylm.bundles.task_encoder import TaskEncoder
from energylm.config.finetune import FIRST, MEAN, REGRESSION, TASKS, Pooling, TaskName, TextStyle
from energylm.data.pair_encoding import EncodedTexts, PairEncoder, padded
from energylm.data.spoken import spoken_words
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.models import sequence_classifier
from energylm.models.sequence_classifier import SequenceClassifier
from energylm.numerics.length_batches import length_batches
from energylm.records import Record

KIND = "sentence-model"
TOKENS_AT_ONCE = 4096  # of padded inputs in one pass


@dataclass(frozen=True)
class SentencePrediction(Record):
    """A class with the probabilities of all, by name; or a score."""

    label: str | None
    score: float | None
    probabilities: dict[str, float] | None


class SentenceModel:
    def __init__(
        self,
        network: SequenceClassifier,
        tokenizer: PreTrainedTokenizerFast,
        *,
        task: TaskName,
        max_tokens: int,
        style: TextStyle = "written",
        name: str = "unnamed",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.tokenizer, self.task, self.max_tokens = network, tokenizer, task, max_tokens
        self.style, self.name, self.provenance = style, name, dict(provenance or {})
        self.encoder = PairEncoder(tokenizer, max_tokens=max_tokens)

    @classmethod
    def from_encoder(
        cls,
        start: TaskEncoder,
        *,
        task: TaskName,
        max_tokens: int,
        pooling: Pooling | None,
        style: TextStyle,
        dropout: float,
    ) -> Self:
        """Ready to be trained: a new linear layer, with weights from torch's global generator."""
        labels = TASKS[task].labels or ("score",)
        max_tokens = start.tokens_read(max_tokens)
        marked = PairEncoder(start.tokenizer, max_tokens=max_tokens).starts_with_mark
        network = SequenceClassifier.of(
            start.network,
            pooling=pooling or (FIRST if marked else MEAN),
            head_dropout=dropout,
            id2label=dict(enumerate(labels)),
            label2id={label: place for place, label in enumerate(labels)},
            problem_type="regression" if TASKS[task].kind == REGRESSION else "single_label_classification",
        )
        return cls(network, start.tokenizer, task=task, max_tokens=max_tokens, style=style, name=start.name)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Self:
        """The model that `save_pretrained` wrote."""
        location = locate(folder)
        manifest = read_manifest(location) if isinstance(location, Path) and location.is_dir() else {}
        if not isinstance(location, Path) or manifest.get("kind") != KIND:
            raise ModelError(f"{folder} holds no fine-tuned sentence model; make one with `energylm finetune`")
        check_files(location)
        sequence_classifier.register()
        with quiet_transformers():
            network = AutoModelForSequenceClassification.from_pretrained(location, use_safetensors=True)
        check_finite(network, location)
        return cls(
            network.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval(),
            load_tokenizer(location),
            task=manifest["task"],
            max_tokens=manifest["max_tokens"],
            style=manifest["style"],
            name=manifest["name"],
            provenance=manifest["provenance"],
        )

    def save_pretrained(self, folder: str | Path) -> None:
        facts = {"name": self.name, "task": self.task, "max_tokens": self.max_tokens, "style": self.style}
        with new_model_folder(folder) as temporary:
            with quiet_transformers():
                self.network.save_pretrained(temporary)
                self.tokenizer.save_pretrained(temporary)
            write_manifest(temporary, kind=KIND, facts=facts, provenance=self.provenance)

    def encode(self, firsts: Sequence[str], seconds: Sequence[str | None] | None = None) -> EncodedTexts:
        """What the network reads; tasks of pairs need both texts."""
        if not TASKS[self.task].has_pairs:
            return self.encoder.encode(self._styled(firsts))
        if seconds is None or None in seconds:
            raise ConfigError(f"{self.task} judges pairs; give the second texts, too")
        return self.encoder.encode(self._styled(firsts), self._styled(seconds))

    def _styled(self, texts: Sequence[str | None]) -> list[str]:
        change = spoken_words if self.style == "spoken" else str
        return [change(str(text)) for text in texts]

    def predict(self, firsts: Sequence[str], seconds: Sequence[str] | None = None) -> list[SentencePrediction]:
        """Texts longer than `max_tokens` are cut at their end."""
        return self.predictions(sentence_logits(self.network, self.encode(firsts, seconds)))

    def predictions(self, logits_NC: Tensor) -> list[SentencePrediction]:
        about = TASKS[self.task]
        if about.kind == REGRESSION:
            return [SentencePrediction(None, about.highest * score, None) for score in logits_NC[:, 0].tolist()]
        return [
            SentencePrediction(about.labels[max(range(len(row)), key=row.__getitem__)], None, _named(about.labels, row))
            for row in logits_NC.double().softmax(-1).tolist()
        ]


@torch.no_grad()
def sentence_logits(network: SequenceClassifier, encoded: EncodedTexts) -> Tensor:
    """(N, C) logits in float32 on the CPU; sequences of similar length travel together."""
    lengths_N = torch.from_numpy(encoded.lengths)
    labels: Any = network.config.num_labels  # a number wherever there is a head
    logits_NC = torch.empty(len(encoded), labels)
    for rows, _ in length_batches(lengths_N, tokens_at_once=TOKENS_AT_ONCE):
        inputs = {name: array.to(network.device) for name, array in encoder_inputs(encoded, rows.tolist()).items()}
        logits_NC[rows] = network(**inputs).logits.float().cpu()
    return logits_NC


def encoder_inputs(encoded: EncodedTexts, rows: Sequence[int]) -> dict[str, Tensor]:
    """Right-padded ids, mask and token types (B, T) of the sequences `rows`."""
    ids = [encoded.ids[row] for row in rows]
    lengths_B = torch.tensor([len(one) for one in ids])
    second_B = torch.from_numpy(encoded.second_starts[list(rows)])
    tokens_BT = torch.from_numpy(padded(ids))
    places_T = torch.arange(tokens_BT.shape[1])
    real_BT = places_T < lengths_B[:, None]
    return {
        "input_ids": tokens_BT,
        "attention_mask": real_BT.long(),
        "token_type_ids": (real_BT & (places_T >= second_B[:, None])).long(),
    }


def _named(labels: Sequence[str], row: Sequence[float]) -> dict[str, float]:
    return dict(zip(labels, row, strict=True))
