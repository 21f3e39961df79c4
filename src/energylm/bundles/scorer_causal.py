"""Log-likelihood as a score: log P(x) = Σ_t log P(x_t | x_<t) of a causal language model, in one pass.

Lists of similar texts are read over the tree of their prefixes where the network allows it, each shared prefix once.
"""

from collections.abc import Sequence
from functools import cached_property

import torch

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.scorer_text import Reading, each_alone, padded, read_text
from energylm.config.score import LOG_LIKELIHOOD
from energylm.data.tokenizer import plain_encoder
from energylm.models.prefix_tree import tree_log_probs, why_not_prefix_tree
from energylm.progress import say


class CausalScorer:
    method = LOG_LIKELIHOOD

    def __init__(self, lm: LanguageModel, *, eos: bool = False) -> None:
        self.lm, self.eos, self.name = lm, eos, lm.name
        self.reads: str = lm.model.direction
        self._encoder = plain_encoder(lm.tokenizer)
        if eos:
            lm.codec.ended([])  # says so where the model has no such token

    @property
    def max_tokens(self) -> int | None:
        return self.lm.model.max_length  # the last token is scored, not read, which leaves a place for the start token

    @property
    def convention(self) -> str:
        return f"log-likelihood, {self.lm.convention(eos=self.eos).partition(';')[0].replace('nats per token', 'nats')}"

    def read(self, text: str) -> Reading:
        reading = read_text(self._encoder, text)
        if not self.eos or self.lm.eos_token_id is None:
            return reading
        piece = str(self.lm.tokenizer.convert_ids_to_tokens(self.lm.eos_token_id))
        return reading.with_end(self.lm.eos_token_id, piece, at_the_end=self.lm.codec.forward)

    def token_scores(self, readings: Sequence[Reading]) -> list[list[float]]:
        if not readings:
            return []
        lengths_B = torch.tensor([len(reading) for reading in readings])
        scores_BT = self.lm.token_log_probs(padded([reading.ids for reading in readings]), lengths_B).cpu().double()
        return [scores_T[: len(reading)].tolist() for scores_T, reading in zip(scores_BT, readings, strict=True)]

    def list_scores(self, lists: Sequence[Sequence[Reading]]) -> list[list[list[float]]]:
        """`token_scores` of lists whose members share prefixes."""
        if not self._reads_trees:
            return each_alone(self.token_scores, lists)
        values = tree_log_probs(self.lm.model, [[reading.ids for reading in readings] for readings in lists])
        return [[scores_T.cpu().double().tolist() for scores_T in of_list] for of_list in values]

    @cached_property
    def _reads_trees(self) -> bool:
        reason = why_not_prefix_tree(self.lm.model)
        if reason is not None:
            say(f"energylm: {self.name} scores every hypothesis by itself, shared prefixes too (slower): {reason}")
        return reason is None
