"""What a language model says about text: scores of given sequences, and sampled ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from energylm.records import Record
from energylm.samplers.continuations import Continuations


@dataclass(frozen=True)
class SequenceScore(Record):
    """One sequence: natural-log probability, and how many tokens and bytes it covers."""

    log_prob: float
    tokens: int
    bytes: int
    token_log_probs: tuple[float, ...]  # of the scored tokens, in natural order

    computed = ("perplexity", "bits_per_byte")

    @property
    def perplexity(self) -> float:
        return math.exp(min(-self.log_prob / self.tokens, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        return -self.log_prob / (math.log(2) * self.bytes) if self.bytes else None


@dataclass(frozen=True)
class SampledTexts(Record):
    """n continuations of each context, as text and as tokens with both log-probabilities; all in natural order."""

    contexts: list[list[int]]
    texts: list[list[str]]  # what was added, without the context and without special tokens
    continuations: Continuations

    def rows(self) -> Iterator[dict[str, Any]]:
        """One JSON-able object a continuation."""
        drawn = self.continuations
        for context, texts in enumerate(self.texts):
            for copy, text in enumerate(texts):
                length = int(drawn.lengths[context, copy])
                yield {
                    "context": context,
                    "text": text,
                    "tokens": drawn.tokens[context, copy, :length].tolist(),
                    "log_prob": float(drawn.log_prob[context, copy]),
                    "proposal_log_prob": float(drawn.proposal_log_prob[context, copy]),
                }
