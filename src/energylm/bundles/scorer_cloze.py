"""Pseudo-log-likelihood in a single pass: Electric (−E, unnormalised), two-tower and ELECTRA-TT models."""

from collections.abc import Sequence

import torch

from energylm.bundles.cloze_model import ClozeModel
from energylm.bundles.scorer_text import Reading, each_alone, padded, read_text
from energylm.config.score import PSEUDO_LOG_LIKELIHOOD
from energylm.data.tokenizer import plain_encoder


class ClozeScorer:
    method = PSEUDO_LOG_LIKELIHOOD
    reads = "both"

    def __init__(self, model: ClozeModel) -> None:
        self.model, self.name = model, model.name
        self._encoder = plain_encoder(model.tokenizer)

    @property
    def max_tokens(self) -> int | None:
        return self.model.max_tokens

    @property
    def convention(self) -> str:
        return f"pseudo-log-likelihood in nats of {self.name}'s tokens, one pass ({self.model.kind})"

    def read(self, text: str) -> Reading:
        return read_text(self._encoder, text)

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]:
        if not readings:
            return []
        lengths_B = torch.tensor([len(reading) for reading in readings])
        scores_BT = self.model.token_scores(padded([reading.ids for reading in readings]), lengths_B).cpu().double()
        return [scores_T[: len(reading)].tolist() for scores_T, reading in zip(scores_BT, readings, strict=True)]

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        return each_alone(self.token_scores, lists)
