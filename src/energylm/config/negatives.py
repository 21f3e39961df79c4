"""How `energylm negatives` continues contexts: which, how far, how often. A folder of negatives records it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.sampling import Truncation


class NegativesSettings(Config):
    """k continuations of each context, drawn from a language model: all but which model, and of which corpus."""

    split: Literal["train", "valid", "test"] = Field("train", description="The split that contexts come from.")
    k: int = Field(16, ge=1, description="Continuations of each context (deng2020: 16 for news, 128 for books).")
    length: int = Field(160, ge=2, description="Tokens of context and continuation together.")
    prefix_tokens: tuple[int, ...] = Field(
        (120,),
        min_length=1,
        description="Tokens of context; of several, each window takes one at random (bakhtin2019: 120 and 140).",
    )
    side: Literal["suffix", "prefix"] = Field(
        "suffix",
        description="What is generated: the end of a window, or its beginning (by a right-to-left model).",
    )
    documents: Literal["packed", "within"] = Field(
        "within",
        description="Whether windows may cross documents (packed) or not; within one there is no special token, so the "
        "language model writes none.",
    )
    stride: int | None = Field(None, ge=1, description="Tokens from window to window; none = the length.")
    contexts: int | None = Field(None, ge=1, description="How many windows at most, chosen at random; none = all.")
    truncation: Truncation = Field(
        Truncation(), description="How the proposal is narrowed; noise-contrastive training wants it as it is."
    )
    stop_at_eos: bool = Field(
        False,
        description="End a continuation, generated or real, at its first end-of-text token; otherwise write on.",
    )
    seed: int = Field(0, ge=0, description="Of the choice of windows, of context lengths, of every draw.")
    block_contexts: int = Field(
        256, ge=1, description="Contexts of one shard: what a killed run has to do again at most."
    )

    @model_validator(mode="after")
    def _contexts_leave_something_to_write(self) -> Self:
        if min(self.prefix_tokens) < 0 or max(self.prefix_tokens) >= self.length:
            raise ValueError(
                f"`prefix_tokens` {' and '.join(map(str, self.prefix_tokens))} must lie in [0, {self.length}), the "
                "length of a window; shorten the context or lengthen the window"
            )
        if self.stop_at_eos and self.documents == "within":
            raise ValueError(
                "stop_at_eos needs packed documents: a window within one never holds the end-of-text token, "
                "so its absence would give real text away"
            )
        return self
