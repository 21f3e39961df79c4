"""What is measured by `energylm perplexity`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

CONFIDENCE = 0.95  # of statements about finite samples, unless another is asked for


class PerplexityConfig(Config):
    """Base, joint, certified and baseline perplexity of one set of windows (Deng et al. 2020, table 1)."""

    language_model: str = Field(description="The base: a model folder, a GGUF file, a known model or a hub name.")
    energy: str | None = Field(None, description="An energy folder; none measures the language models only.")
    source: str = Field(description="A corpus folder, or a text or JSONL file.")
    split: Literal["train", "valid", "test"] = Field("test", description="Split of a corpus folder.")
    field: str = Field("text", description="JSONL field that holds the text.")
    length: int = Field(160, ge=2, description="Tokens of a window.")
    documents: Literal["packed", "within"] = Field(
        "within",
        description="Whether windows of a corpus may cross documents (packed) or not; within one there is no special "
        "token, so the models write none.",
    )
    prefix: int = Field(120, ge=0, description="Tokens of a window that are given and not scored.")
    contexts: int = Field(100, ge=1, description="Windows, chosen at random from a corpus, evenly from a file.")
    n: int = Field(1000, ge=2, description="Samples a context for log Z; the paper draws 100,000.")
    ralm: str | None = Field(None, description="A residual auto-regressive model on the same base, to compare.")
    balm: str | None = Field(None, description="A bigger auto-regressive model, to compare.")
    by_position: bool = Field(False, description="Also the perplexity at each position (eq. 5, fig. 1).")
    position_samples: int = Field(1000, ge=2, description="Samples a context and position; the paper draws 20,000.")
    by_samples: bool = Field(False, description="Also the interval from fewer samples (fig. 2, left).")
    confidence: float = Field(
        CONFIDENCE, gt=0, lt=1, description="Of the upper end of the certified row, over samples, for these windows."
    )
    seed: int = Field(0, ge=0, description="Of the windows and the samples.")
    block_contexts: int = Field(
        8, ge=1, description="Windows of one block: what a worker takes at a time, and a killed run does again at most."
    )

    @property
    def plain_text(self) -> bool:
        """Whether no window holds a special token (files have none), so that models are measured without them."""
        return self.documents == "within"

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        if self.prefix >= self.length:
            raise ValueError(f"prefix {self.prefix} leaves nothing of length {self.length} to score; lower it")
        if self.energy is None and (self.by_position or self.by_samples):
            raise ValueError("by_position and by_samples measure a joint model; give an energy")
        return self
