"""A language model that `energylm lm train` makes: of which shape, reading which windows, trained how."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.models import LEFT_TO_RIGHT, Direction
from energylm.config.training import TrainingConfig


class LanguageModelSettings(Config):
    """The network and its training: all but the corpus."""

    kind: Literal["lm", "ralm", "balm"] = Field(
        "lm",
        description="lm: one network. ralm: the product of the frozen `base` and a network of this shape (deng2020 "
        "eq. 6). balm: one network of this shape, widened to the parameters of `base` and that shape together.",
    )
    base: str | None = Field(None, description="The base model (folder or name) of a ralm or balm.")
    preset: str = Field("tiny", description="Shape of the network: tiny, mini, small, big, huge, conv, conv-tiny, …")
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    pretrained: str | None = Field(
        None,
        description="Start from this model (folder or name), not from random weights; its tokens must be the corpus's.",
    )
    direction: Direction = Field(LEFT_TO_RIGHT, description="The order in which the model reads text.")
    window: int = Field(160, ge=2, description="Tokens of a training window (the papers': 160).")
    validation_windows: int | None = Field(
        512, ge=1, description="Validate on this many windows, evenly spread over the split; none = all of them."
    )
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _baselines_have_a_base(self) -> Self:
        if (self.kind == "lm") != (self.base is None):
            raise ValueError(
                f"kind {self.kind!r} came with base {self.base!r}; a ralm or balm has a base, an lm has none"
            )
        if self.kind != "lm" and self.pretrained is not None:
            raise ValueError(f"a {self.kind} starts from random weights; leave out pretrained ({self.pretrained!r})")
        return self
