"""What is looked at in text that a joint model writes: n-grams, densities, next tokens (deng2020 §4.3, app. A.1)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config


class JointWindowsConfig(Config):
    """A joint model and the windows of a corpus whose beginnings it continues."""

    language_model: str = Field(description="The base model: a folder or a name.")
    energy: str = Field(description="An energy folder (`energylm energy train`).")
    source: str = Field(description="A corpus folder.")
    split: Literal["train", "valid", "test"] = Field("test", description="Split of the corpus.")
    length: int = Field(160, ge=2, description="Tokens of a window, which lies within one document.")
    prefix: int = Field(120, ge=1, description="Tokens of a window that are given.")
    contexts: int = Field(100, ge=2, description="Windows, chosen at random.")
    n: int = Field(1000, ge=2, description="Samples of the base for each text of the joint model (the paper: 10,000).")
    seed: int = Field(0, ge=0, description="Of the windows and all samples.")

    @model_validator(mode="after")
    def _leaves_something_to_write(self) -> Self:
        if self.prefix >= self.length:
            raise ValueError(f"`prefix` {self.prefix} leaves nothing of length {self.length} to write; lower it")
        return self


class SampledTextConfig(JointWindowsConfig):
    """Base and joint continuations against real ones: unique n-grams (fig. 2 right), densities (fig. 3)."""


class RepetitionsConfig(JointWindowsConfig):
    """Next-token probabilities where the base model has just repeated itself (app. A.1, table 3)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")
    examples: int = Field(3, ge=1, description="Places that are looked at, the first found in the samples.")
    within: int = Field(8, ge=1, description="A word repeats itself if it stood among so many tokens before.")
    letters: int = Field(4, ge=1, description="Shorter words repeat themselves in all good text; they do not count.")
    show: int = Field(5, ge=1, description="Rows of each table.")
