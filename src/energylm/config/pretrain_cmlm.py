"""What `energylm pretrain cmlm` makes: a conditional masked language model for translation (goyal2021, §6.5).

The paper takes the model of Mask-Predict (Ghazvininejad et al. 2019): six layers each of width 512 with 8 heads and a
feed-forward of 2,048, and as many hidden target tokens as a uniform draw between one and all of them says.
"""

from typing import Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.training import TrainingConfig


class ConditionalShape(Config):
    """A transformer encoder of the source and a bidirectional decoder of the target."""

    encoder_layers: int = Field(2, ge=1, description="Blocks that read the source.")
    decoder_layers: int = Field(2, ge=1, description="Blocks that read the target and look at the source.")
    width: int = Field(128, ge=1, description="Size of embeddings and hidden states.")
    heads: int = Field(4, ge=1, description="Attention heads; must divide the width.")
    feedforward_width: int | None = Field(None, ge=1, description="Inner size of the feed-forward; none = 4 × width.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and residual branches.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, came {self.heads} heads and width {self.width}")
        return self

    @property
    def inner_width(self) -> int:
        """Of the feed-forward."""
        return self.feedforward_width or 4 * self.width


class PretrainCMLMConfig(Config):
    """A conditional masked language model trained on parallel text."""

    train: tuple[str, ...] = Field(description="The source and the target file: line n of one translates line n.")
    valid: tuple[str, ...] = Field(description="The same for validation.")
    network: ConditionalShape = ConditionalShape()
    vocabulary_size: int = Field(4096, ge=300, description="Tokens of the BPE, one for both languages.")
    longest: int = Field(64, ge=2, description="The most tokens of a source or target; longer pairs are left out.")
    limit: int | None = Field(None, ge=1, description="Train on the first so many pairs; none = on all.")
    valid_limit: int | None = Field(None, ge=1, description="Validate on the first so many pairs; none = on all.")
    length_weight: float = Field(0.1, ge=0, description="Weight of the predicted length's loss beside the tokens'.")
    iterations: int = Field(4, ge=1, description="Of mask-predict, which translates the validation data for BLEU.")
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _two_files_each(self) -> Self:
        for name, files in (("train", self.train), ("valid", self.valid)):
            if len(files) != 2:
                raise ValueError(f"{name} came with {len(files)} files; parallel text is two, source and target")
        return self
