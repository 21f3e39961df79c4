"""What `energylm pretrain` makes: masked language models of which shape, reading which windows, masked how.

`bit-base` and `bit-large` have RoBERTa's sizes, which deng2020 §4.1 takes for its bidirectional energies.
"""

from collections.abc import Mapping
from typing import Any, Self, cast

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.models import TransformerShape, preset_shape
from energylm.config.training import TrainingConfig


class LocalTransformerShape(TransformerShape):
    """A bidirectional encoder most of whose layers look at neighbours only (ModernBERT's form). A small masked model
    learns within minutes this way; one that has to find its neighbours among all positions first takes hours."""

    local_attention: int = Field(8, ge=2, description="Tokens that a local layer sees, half of them on either side.")


MASKED_PRESETS: dict[str, TransformerShape] = {
    "bit-local-tiny": LocalTransformerShape(layers=2, width=128, heads=4, dropout=0.0),  # minutes on two CPU cores
    "bit-local-mini": LocalTransformerShape(layers=4, width=256, heads=4, dropout=0.0),
    "bit-tiny": TransformerShape(layers=2, width=128, heads=4, dropout=0.0),
    "bit-mini": TransformerShape(layers=4, width=256, heads=4, dropout=0.0),
    "bit-base": TransformerShape(layers=12, width=768, heads=12),  # deng2020 BIT-BASE, 125 M parameters
    "bit-large": TransformerShape(layers=24, width=1024, heads=16),  # deng2020 BIT-LARGE, 355 M parameters
}


def masked_preset_shape(preset: str, overrides: Mapping[str, Any] | None = None) -> TransformerShape:
    """The shape of a bidirectional encoder called `preset`, with some of its keys replaced."""
    return cast(TransformerShape, preset_shape(preset, overrides, presets=MASKED_PRESETS))


class MaskingConfig(Config):
    """Which tokens are to be predicted, and what the network sees in their place (Devlin et al. 2019)."""

    rate: float = Field(0.15, gt=0, lt=1, description="Probability that a token is chosen to be predicted.")
    mask_share: float = Field(
        0.8, ge=0, le=1, description="Of the chosen: replaced by the mask token; 1 = all of them."
    )
    random_share: float = Field(
        0.1, ge=0, le=1, description="Of the chosen: replaced by a random token; the rest stay."
    )

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share and random_share must not exceed 1 together, "
                f"came {self.mask_share} and {self.random_share}"
            )
        return self


class PretrainMLMConfig(Config):
    """A masked language model trained on a corpus: the start of a bidirectional energy."""

    corpus: str = Field(description="The corpus folder, made by `energylm corpus build`.")
    preset: str = Field("bit-tiny", description="Shape of the network: bit-local-tiny, bit-tiny, bit-base, bit-large …")
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    window: int = Field(160, ge=2, description="Tokens of a training window, and the most that the network reads.")
    validation_windows: int | None = Field(
        512, ge=1, description="Validate on this many windows, evenly spread over the split; none = all of them."
    )
    masking: MaskingConfig = MaskingConfig()
    training: TrainingConfig = TrainingConfig()
