"""A fine-tuned model that answers questions by spans of a context. `energylm finetune --task squad2` makes them.

    SpanModel.from_pretrained(folder).answer(["Who?"], ["A context …"])

Long contexts are read in windows; the likeliest span of all windows is the answer (log P(s, e), `search.span_beam`),
and the smallest log-odds of "no answer" over the windows decide whether there is one: a window without the answer says
little about the others. The folder also loads with transformers' `AutoModelForQuestionAnswering`, once
`models.span_predictor.register` has been called; the joint search is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerFast

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import (
    check_files,
    check_finite,
    new_model_folder,
    quiet_transformers,
    read_manifest,
    write_manifest,
)
from energylm.bundles.sentence_model import encoder_inputs
from energylm.bundles.task_encoder import TaskEncoder
from energylm.config.finetune import SpanConfig, TaskName
from energylm.data.formats.squad import Question
from energylm.data.pair_encoding import EncodedTexts, PairEncoder
from energylm.data.span_windows import SpanWindow, SpanWindows, span_windows
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ModelError
from energylm.models import span_predictor
from energylm.models.span_predictor import SpanPredictor
from energylm.numerics.length_batches import length_batches
from energylm.records import Record
from energylm.search.span_beam import span_beam

KIND = "span-model"
TOKENS_AT_ONCE = 2048


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
    def from_encoder(
        cls, start: TaskEncoder, *, task: TaskName, max_tokens: int, config: SpanConfig, dropout: float
    ) -> Self:
        """Ready to be trained: a new head, with weights from torch's global generator."""
        network = SpanPredictor.of(start.network, head_dropout=dropout, span_width=config.hidden_width)
        limit = start.tokens_read(max_tokens)
        return cls(network, start.tokenizer, task=task, max_tokens=limit, config=config, name=start.name)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Self:
        """The model that `save_pretrained` wrote."""
        location = locate(folder)
        manifest = read_manifest(location) if isinstance(location, Path) and location.is_dir() else {}
        if not isinstance(location, Path) or manifest.get("kind") != KIND:
            raise ModelError(
                f"{folder} holds no fine-tuned span model; make one with `energylm finetune --task squad2`"
            )
        check_files(location)
        span_predictor.register()
        with quiet_transformers():
            network = AutoModelForQuestionAnswering.from_pretrained(location, use_safetensors=True)
        check_finite(network, location)
        return cls(
            network.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval(),
            load_tokenizer(location),
            task=manifest["task"],
            max_tokens=manifest["max_tokens"],
            config=SpanConfig.checked(manifest["spans"], origin=str(folder)),
            name=manifest["name"],
            provenance=manifest["provenance"],
        )

    def save_pretrained(self, folder: str | Path) -> None:
        facts = {
            "name": self.name,
            "task": self.task,
            "max_tokens": self.max_tokens,
            "spans": self.config.model_dump(mode="json"),
        }
        with new_model_folder(folder) as temporary:
            with quiet_transformers():
                self.network.save_pretrained(temporary)
                self.tokenizer.save_pretrained(temporary)
            write_manifest(temporary, kind=KIND, facts=facts, provenance=self.provenance)

    def encode(self, questions: Sequence[Question]) -> SpanWindows:
        return span_windows(questions, self.encoder, self.config)

    def answer(self, questions: Sequence[str], contexts: Sequence[str]) -> list[SpanAnswer]:
        """The answer to each question from its context."""
        asked = [
            Question(str(number), question, context, ())
            for number, (question, context) in enumerate(zip(questions, contexts, strict=True))
        ]
        return self.answers(asked, self.encode(asked).windows)

    def answers(self, questions: Sequence[Question], windows: Sequence[SpanWindow]) -> list[SpanAnswer]:
        """The answer to each question from its windows, which stand in the order of the questions."""
        starts, ends, log_probs, odds = (value.tolist() for value in self._best_spans(windows))
        best: dict[int, int] = {}
        least_odds: dict[int, float] = {}
        for place, window in enumerate(windows):
            number = window.question
            if number not in best or log_probs[place] > log_probs[best[number]]:
                best[number] = place
            least_odds[number] = min(odds[place], least_odds.get(number, np.inf))
        found = []
        for number, question in enumerate(questions):
            place = best[number]
            span = windows[place].text(question.context, starts[place], ends[place])
            silent = self.task == "squad2" and least_odds[number] > self.config.threshold
            found.append(SpanAnswer("" if silent else span, span, log_probs[place], least_odds[number]))
        return found

    @torch.no_grad()
    def _best_spans(self, windows: Sequence[SpanWindow]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Start, end, log-probability and log-odds of no answer of each window, (W,) each, on the CPU."""
        lengths_W = torch.tensor([len(window.ids) for window in windows])
        starts_W, ends_W = torch.zeros_like(lengths_W), torch.zeros_like(lengths_W)
        log_prob_W, odds_W = torch.zeros(len(windows)), torch.zeros(len(windows))
        for rows, _ in length_batches(lengths_W, tokens_at_once=TOKENS_AT_ONCE):
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
    places_T = torch.arange(inputs["input_ids"].shape[1])
    inside_BT = (places_T >= first_B[:, None]) & (places_T < (first_B + held_B)[:, None])
    return inputs | {"context_mask": inside_BT}
