"""Shapes of the language models made here and their presets: bakhtin2019 table 9, deng2020 §4.1, small ones for CPUs.

Sizes in the papers are for a byte-level BPE of 50,257 tokens. Where a printed setting cannot be, we choose and say so:

`huge`       25 heads do not divide 1536: 24.
`balm`       a width of 1568 gives 433 M parameters, not the printed 408 M: 1520 gives 409 M.
`*-24l`      "the same number of parameters" with twice the layers, widths unprinted: 752 and 1104 stay within 1 %.
`conv`       only 13 M + 164 M and 12 layers are printed: an embedding of 256, a width of 1304 and a kernel of 4 fit.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.errors import ConfigError

Direction = Literal["left-to-right", "right-to-left"]
LEFT_TO_RIGHT: Direction = "left-to-right"
RIGHT_TO_LEFT: Direction = "right-to-left"


class TransformerShape(Config):
    """A pre-norm transformer decoder with tied embeddings (GPT-2's form)."""

    layers: int = Field(ge=1, description="Blocks of attention and feed-forward.")
    width: int = Field(ge=1, description="Size of embeddings and hidden states.")
    heads: int = Field(ge=1, description="Attention heads; must divide the width.")
    feedforward_width: int | None = Field(None, ge=1, description="Inner size of the feed-forward; none = 4 × width.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings, attention and residual branches.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, came {self.heads} heads and width {self.width}")
        return self

    @property
    def inner_width(self) -> int:
        """Of the feed-forward."""
        return self.feedforward_width or 4 * self.width


class ConvolutionShape(Config):
    """A gated convolutional decoder (Dauphin et al. 2017) with tied embeddings."""

    layers: int = Field(ge=1, description="Residual blocks, one gated convolution each.")
    width: int = Field(ge=1, description="Channels of the hidden states.")
    embedding_width: int = Field(ge=1, description="Size of the embeddings, projected to and from the width.")
    kernel: int = Field(4, ge=2, description="Tokens that one convolution sees: the current and kernel − 1 before.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and residual branches.")


Shape = TransformerShape | ConvolutionShape
ShapeType = TypeVar("ShapeType", bound=Config)

PRESETS: dict[str, Shape] = {
    "tiny": TransformerShape(layers=2, width=128, heads=4, dropout=0.0),  # minutes on two CPU cores
    "mini": TransformerShape(layers=4, width=256, heads=4, dropout=0.0),
    "small": TransformerShape(layers=6, width=512, heads=8),  # bakhtin2019 TransfSmall
    "big": TransformerShape(layers=12, width=1024, heads=16),  # bakhtin2019 TransfBig, deng2020 BASE LM
    "huge": TransformerShape(layers=48, width=1536, heads=24),  # bakhtin2019 TransfHuge
    "balm": TransformerShape(layers=12, width=1520, heads=16),  # deng2020 BALM
    "base-24l": TransformerShape(layers=24, width=752, heads=16),  # deng2020 BASE LM-24L
    "balm-24l": TransformerShape(layers=24, width=1104, heads=16),  # deng2020 BALM-24L
    "conv": ConvolutionShape(layers=12, width=1304, embedding_width=256),  # bakhtin2019 Conv
    "conv-tiny": ConvolutionShape(layers=4, width=128, embedding_width=128, dropout=0.0),
}


def preset_shape(
    preset: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    presets: Mapping[str, ShapeType] = PRESETS,  # type: ignore[assignment]  # mypy knows no default of a type variable
) -> ShapeType:
    """The shape called `preset` with some of its keys replaced; an unknown name or key names its nearest neighbour."""
    if preset not in presets:
        near = difflib.get_close_matches(preset, presets, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"known presets: {', '.join(presets)}"
        raise ConfigError(f"unknown model preset {preset!r}; {cure}")
    shape = presets[preset]
    return type(shape).checked(shape.model_dump() | dict(overrides or {}), origin=f"model preset {preset!r}")
