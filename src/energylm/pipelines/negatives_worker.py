"""A language model that continues blocks of windows: what does the work of `energylm negatives`, here or elsewhere.

The contexts travel with the block, so a worker needs the model and nothing else. The random numbers of a continuation
depend on (seed, window, copy) only.

Relations  `negatives` cuts blocks and writes shards; `samplers.continuations` draws.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.language_model import LanguageModel
from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT
from energylm.config.negatives import NegativesConfig
from energylm.data.negatives_shards import NegativeRows
from energylm.data.tokenizer import tokenizer_sha256
from energylm.errors import ModelError, VocabularyMismatch
from energylm.models.causal import reversed_within
from energylm.progress import Progress
from energylm.randomness import derive_seed
from energylm.samplers.continuations import Continuations, sample_continuations


@dataclass(frozen=True)
class ContextBlock:
    """Windows of a corpus, cut where the generated part begins."""

    window_B: NDArray[np.int64]
    cut_B: NDArray[np.int64]
    contexts: list[NDArray[np.int64]]


class NegativesWorker:
    """k continuations of each window of a block, as the rows of a shard."""

    def __init__(self, place: str, config: NegativesConfig, *, tokenizer: str, end_token_id: int) -> None:
        """`place` is where the model lies; `tokenizer` (a hash) and `end_token_id` are the corpus's."""
        self.config, self.lm = config, LanguageModel.from_pretrained(place)
        self._check(tokenizer, end_token_id)
        if config.documents == "within":  # the real continuations hold no special token, so neither must these
            self.lm = self.lm.without_special_tokens()
        self.decoder = self.lm.decoder()

    def facts(self) -> Mapping[str, Any]:
        return {"name": self.lm.name}

    def __call__(self, block: ContextBlock, *, progress: Progress) -> NegativeRows:
        """Windows with contexts of one length travel together."""
        config = self.config
        shape = (len(block.window_B), config.k)
        tokens_BKT = np.zeros((*shape, config.length - int(block.cut_B.min())), dtype=np.int64)
        rows = NegativeRows(
            block.window_B, block.cut_B, tokens_BKT, np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        )
        for cut in np.unique(block.cut_B):
            members = np.flatnonzero(block.cut_B == cut)
            contexts = [block.contexts[row] for row in members]
            drawn = self._draw(contexts, block.window_B[members], config.length - int(cut), progress)
            rows.tokens_BKT[members, :, : drawn.tokens.shape[2]] = drawn.tokens.numpy()
            rows.length_BK[members] = drawn.lengths.numpy()
            rows.log_prob_BK[members] = drawn.log_prob.numpy()
            rows.proposal_log_prob_BK[members] = drawn.proposal_log_prob.numpy()
        return rows

    def _draw(
        self, contexts: Sequence[NDArray[np.int64]], window_B: NDArray[np.int64], new_tokens: int, bar: Progress
    ) -> Continuations:
        backwards = self.lm.model.direction == RIGHT_TO_LEFT
        given = [self.lm.codec.context(context.tolist()) for context in contexts]  # an empty one is the start token
        drawn = sample_continuations(
            self.decoder,
            [ids[::-1] for ids in given] if backwards else given,
            n=self.config.k,
            max_new_tokens=new_tokens,
            truncation=self.config.truncation,
            eos_token_id=self.lm.eos_token_id if self.config.stop_at_eos else None,
            seed=derive_seed(self.config.seed, "negatives"),
            context_indices=window_B.tolist(),
            progress=bar,
        )
        return replace(drawn, tokens=reversed_within(drawn.tokens, drawn.lengths)) if backwards else drawn

    def _check(self, tokenizer: str, end_token_id: int) -> None:
        config, lm = self.config, self.lm
        if tokenizer_sha256(lm.tokenizer) != tokenizer:
            raise other_tokens(config)
        wanted = LEFT_TO_RIGHT if config.side == "suffix" else RIGHT_TO_LEFT
        if lm.model.direction != wanted:
            other = "prefix" if config.side == "suffix" else "suffix"
            raise ModelError(
                f"{config.lm} writes {lm.model.direction}, so it cannot write a {config.side}; "
                f"say --side {other}, or give a {wanted} model"
            )
        if config.stop_at_eos and lm.eos_token_id != end_token_id:
            raise VocabularyMismatch(
                f"{config.lm} ends texts with token {lm.eos_token_id}, the corpus with {end_token_id}; "
                "generate a fixed length (stop_at_eos=false)"
            )
        if lm.model.max_length is not None and config.length > lm.model.max_length:
            raise ModelError(
                f"{config.lm} holds {lm.model.max_length} tokens, not the {config.length} of a window; "
                "set a shorter --length"
            )


def other_tokens(config: NegativesConfig) -> VocabularyMismatch:
    return VocabularyMismatch(
        f"{config.lm} reads other tokens than {config.corpus} holds; build the corpus with --tokenizer "
        f"{shlex.quote(config.lm)}"
    )
