"""Fine-tuned encoders as people use them: folders, texts, classes, scores or spans. `energylm finetune` makes them.

    SentenceModel.from_pretrained(folder).predict(["A sentence.", …])
    SpanModel.from_pretrained(folder).answer(["Who?"], ["A context …"])

The folders also load with transformers' `AutoModelForSequenceClassification` and `AutoModelForQuestionAnswering`, once
`models.headed_encoder.register` has been called; the joint search of spans is ours. A regression's score is the one
output times the task's highest score.

Long contexts are read in windows; the likeliest span of all windows is the answer (log P(s, e), `search.beam`),
and the smallest log-odds of "no answer" over the windows decide whether there is one: a window without the answer says
little about the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import (
    check_vocabularies,
    load_encoder,
    load_network,
    open_folder,
    read_manifest,
    save_model,
)
from energylm.config.cloze import FIRST, MEAN, REGRESSION, TASKS, Pooling, SpanConfig, TaskName, TextStyle
from energylm.data.examples import EncodedTexts, PairEncoder, padded
from energylm.data.sources import spoken_words
from energylm.data.squad import Question, SpanWindow, SpanWindows, span_windows
from energylm.data.tokenizer import load_tokenizer
from energylm.energies.pooled import attends_causally
from energylm.errors import ConfigError, ModelError
from energylm.models import headed_encoder
from energylm.models.contexts import length_batches, longest_input
from energylm.models.headed_encoder import SequenceClassifier, SpanPredictor
from energylm.records import Record
from energylm.search.beam import span_beam

SENTENCES, SPANS = "sentence-model", "span-model"
SENTENCE_TOKENS, SPAN_TOKENS = 4096, 2048  # of padded inputs in one pass


@dataclass(frozen=True)
class TaskEncoder:
    """An encoder to be fine-tuned: any folder or name that leads to a bidirectional network."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path) -> "TaskEncoder":
        """On the CPU, in float32: the training engine moves it."""
        location = locate(path_or_name)
        if isinstance(location, Path) and location.is_file():
            raise ModelError(f"{location} is a file; an encoder is a model folder, a known model or a hub name")
        manifest = read_manifest(location) if isinstance(location, Path) else {}
        network, tokenizer = load_encoder(location, device=torch.device("cpu")), load_tokenizer(location)
        name = manifest.get("name", Path(location).name)
        if attends_causally(network):
            raise ModelError(
                f"{path_or_name} is a causal language model: its tokens see nothing of what follows them; give a "
                "bidirectional encoder, e.g. minilm-l6 or a model of `energylm pretrain`"
            )
        embedding: Any = network.get_input_embeddings()  # a module, to transformers
        check_vocabularies(name, tokenizer=len(tokenizer), network=embedding.weight.shape[0])
        return cls(network, tokenizer, name)

    def tokens_read(self, wanted: int) -> int:
        """`wanted` tokens, or what the network holds if that is less."""
        limit = longest_input(self.network)
        return wanted if limit is None else min(wanted, limit)


def _loaded(
    folder: str | Path, loader: Any, device: torch.device | str | None, *, kind: str, problem: str
) -> tuple[Any, PreTrainedTokenizerFast, dict[str, Any]]:
    location, manifest = open_folder(folder, [kind], problem)
    headed_encoder.register()
    network, _ = load_network(loader, location, what=f"a {kind}", device=device)
    return network, load_tokenizer(location), manifest


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
    def from_pretrained(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Self:
        """The model that `save_pretrained` wrote."""
        problem = "holds no fine-tuned sentence model; make one with `energylm finetune`"
        network, tokenizer, manifest = _loaded(
            folder, AutoModelForSequenceClassification, device, kind=SENTENCES, problem=problem
        )
        names = ("task", "max_tokens", "style", "name", "provenance")
        return cls(network, tokenizer, **{name: manifest[name] for name in names})

    def save_pretrained(self, folder: str | Path) -> None:
        facts = {"name": self.name, "task": self.task, "max_tokens": self.max_tokens, "style": self.style}
        save_model(folder, self.network, self.tokenizer, kind=SENTENCES, facts=facts, provenance=self.provenance)

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
            label2id={label: index for index, label in enumerate(labels)},
            problem_type="regression" if TASKS[task].kind == REGRESSION else "single_label_classification",
        )
        return cls(network, start.tokenizer, task=task, max_tokens=max_tokens, style=style, name=start.name)

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
            SentencePrediction(
                about.labels[max(range(len(row)), key=row.__getitem__)], None, dict(zip(about.labels, row, strict=True))
            )
            for row in logits_NC.double().softmax(-1).tolist()
        ]


@dataclass(frozen=True)
class SpanAnswer(Record):
    """The best span of the context, and the log-odds of "no answer"; `text` is empty where the model gives none."""

    text: str
    span: str
    log_prob: float
    no_answer_log_odds: float


class SpanModel:
    def __init__(
        self,
        network: SpanPredictor,
        tokenizer: PreTrainedTokenizerFast,
        *,
        task: TaskName,
        max_tokens: int,
        config: SpanConfig,
        name: str = "unnamed",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.tokenizer, self.task, self.max_tokens = network, tokenizer, task, max_tokens
        self.config, self.name, self.provenance = config, name, dict(provenance or {})
        self.encoder = PairEncoder(tokenizer, max_tokens=max_tokens)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Self:
        """The model that `save_pretrained` wrote."""
        problem = "holds no fine-tuned span model; make one with `energylm finetune --task squad2`"
        network, tokenizer, manifest = _loaded(
            folder, AutoModelForQuestionAnswering, device, kind=SPANS, problem=problem
        )
        config = SpanConfig.checked(manifest["spans"], origin=str(folder))
        names = ("task", "max_tokens", "name", "provenance")
        return cls(network, tokenizer, config=config, **{name: manifest[name] for name in names})

    def save_pretrained(self, folder: str | Path) -> None:
        spans = self.config.model_dump(mode="json")
        facts = {"name": self.name, "task": self.task, "max_tokens": self.max_tokens, "spans": spans}
        save_model(folder, self.network, self.tokenizer, kind=SPANS, facts=facts, provenance=self.provenance)

    @classmethod
    def from_encoder(
        cls, start: TaskEncoder, *, task: TaskName, max_tokens: int, config: SpanConfig, dropout: float
    ) -> Self:
        """Ready to be trained: a new head, with weights from torch's global generator."""
        network = SpanPredictor.of(start.network, head_dropout=dropout, span_width=config.hidden_width)
        limit = start.tokens_read(max_tokens)
        return cls(network, start.tokenizer, task=task, max_tokens=limit, config=config, name=start.name)

    def encode(self, questions: Sequence[Question]) -> SpanWindows:
        return span_windows(questions, self.encoder, self.config)

    def answer(self, questions: Sequence[str], contexts: Sequence[str]) -> list[SpanAnswer]:
        """The answer to each question from its context."""
        given = [
            Question(str(number), question, context, ())
            for number, (question, context) in enumerate(zip(questions, contexts, strict=True))
        ]
        return self.answers(given, self.encode(given).windows)

    def answers(self, questions: Sequence[Question], windows: Sequence[SpanWindow]) -> list[SpanAnswer]:
        """The answer to each question from its windows, which stand in the order of the questions."""
        starts, ends, log_probs, odds = (value.tolist() for value in self._best_spans(windows))
        best: dict[int, int] = {}  # the window of each question
        least_odds: dict[int, float] = {}
        for index, window in enumerate(windows):
            number = window.question
            if number not in best or log_probs[index] > log_probs[best[number]]:
                best[number] = index
            least_odds[number] = min(odds[index], least_odds.get(number, np.inf))
        answers = []
        for number, question in enumerate(questions):
            index = best[number]
            span = windows[index].text(question.context, starts[index], ends[index])
            silent = self.task == "squad2" and least_odds[number] > self.config.threshold
            answers.append(SpanAnswer("" if silent else span, span, log_probs[index], least_odds[number]))
        return answers

    @torch.no_grad()
    def _best_spans(self, windows: Sequence[SpanWindow]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Start, end, log-probability and log-odds of no answer of each window, (W,) each, on the CPU."""
        lengths_W = torch.tensor([len(window.ids) for window in windows])
        starts_W, ends_W = torch.zeros_like(lengths_W), torch.zeros_like(lengths_W)
        log_prob_W, odds_W = torch.zeros(len(windows)), torch.zeros(len(windows))
        for rows, _ in length_batches(lengths_W, tokens_at_once=SPAN_TOKENS):
            batch = {
                name: tensor.to(self.network.device)
                for name, tensor in window_inputs([windows[row] for row in rows.tolist()]).items()
            }
            reading = self.network.read(**batch)
            spans = span_beam(
                reading.start_log_prob_BT,
                partial(self.network.end_log_probs, reading),
                allowed_BT=reading.allowed_BT,
                beam=self.config.beam,
                longest=self.config.answer_tokens,
            )
            starts_W[rows], ends_W[rows] = spans.start_BN[:, 0].cpu(), spans.end_BN[:, 0].cpu()
            log_prob_W[rows] = spans.log_prob_BN[:, 0].float().cpu()
            odds_W[rows] = reading.no_answer_log_odds_B.cpu()
        return starts_W, ends_W, log_prob_W, odds_W


def window_inputs(windows: Sequence[SpanWindow]) -> dict[str, Tensor]:
    """Ids, mask, token types and the context's mask (B, T) of windows."""
    encoded = EncodedTexts(
        [window.ids for window in windows],
        np.array([window.second_start for window in windows], dtype=np.int64),
        cut=0,
        longest=0,
    )
    inputs = encoder_inputs(encoded, range(len(windows)))
    first_B = torch.tensor([window.second_start for window in windows])
    held_B = torch.tensor([len(window.offsets) for window in windows])
    position_T = torch.arange(inputs["input_ids"].shape[1])
    inside_BT = (position_T >= first_B[:, None]) & (position_T < (first_B + held_B)[:, None])
    return inputs | {"context_mask": inside_BT}


@torch.no_grad()
def sentence_logits(network: SequenceClassifier, encoded: EncodedTexts) -> Tensor:
    """(N, C) logits in float32 on the CPU; sequences of similar length travel together."""
    lengths_N = torch.from_numpy(encoded.lengths)
    labels: Any = network.config.num_labels  # a number wherever there is a head
    logits_NC = torch.empty(len(encoded), labels)
    for rows, _ in length_batches(lengths_N, tokens_at_once=SENTENCE_TOKENS):
        inputs = {name: array.to(network.device) for name, array in encoder_inputs(encoded, rows.tolist()).items()}
        logits_NC[rows] = network(**inputs).logits.float().cpu()
    return logits_NC


def encoder_inputs(encoded: EncodedTexts, rows: Sequence[int]) -> dict[str, Tensor]:
    """Right-padded ids, mask and token types (B, T) of the sequences `rows`."""
    ids = [encoded.ids[row] for row in rows]
    lengths_B = torch.tensor([len(row) for row in ids])
    second_B = torch.from_numpy(encoded.second_starts[list(rows)])
    tokens_BT = torch.from_numpy(padded(ids))
    position_T = torch.arange(tokens_BT.shape[1])
    real_BT = position_T < lengths_B[:, None]
    return {
        "input_ids": tokens_BT,
        "attention_mask": real_BT.long(),
        "token_type_ids": (real_BT & (position_T >= second_B[:, None])).long(),
    }
