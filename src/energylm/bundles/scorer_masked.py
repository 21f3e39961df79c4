"""Pseudo-log-likelihood as a score: Σ_t log p(x_t | x_∖t) of a masked language model, one pass for each token."""

from collections.abc import Sequence

import torch

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.scorer_text import Reading, each_alone, padded, read_text
from energylm.config.score import PSEUDO_LOG_LIKELIHOOD, TOKEN, WITHIN_WORD, Masking
from energylm.data.tokenizer import plain_encoder
from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods


class MaskedScorer:
    method = PSEUDO_LOG_LIKELIHOOD
    reads = "both"

    def __init__(self, model: MaskedLanguageModel, *, masking: Masking = TOKEN) -> None:
        self.model, self.masking, self.name = model, masking, model.name
        self._encoder = plain_encoder(model.tokenizer)

    @property
    def max_tokens(self) -> int | None:
        return self.model.max_tokens

    @property
    def convention(self) -> str:
        hidden = "each token hidden by itself"
        if self.masking == WITHIN_WORD:
            hidden = "each token hidden together with the later ones of its word"
        frame = ", read within its special tokens, which are not scored" if self.model.model.prefix else ""
        return f"pseudo-log-likelihood in nats of {self.name}'s tokens, {hidden}{frame}"

    def read(self, text: str) -> Reading:
        return read_text(self._encoder, text)

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]:
        if not readings:
            return []
        scores_BT = token_pseudo_log_likelihoods(
            self.model,
            padded([reading.ids for reading in readings]),
            torch.tensor([len(reading) for reading in readings]),
            words_BT=padded([reading.units for reading in readings]) if self.masking == WITHIN_WORD else None,
        )
        return [scores_T[: len(reading)].tolist() for scores_T, reading in zip(scores_BT, readings, strict=True)]

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        return each_alone(self.token_scores, lists)
