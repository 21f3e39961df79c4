"""What a corpus trains: language models (`energylm lm train`) and cloze models (`energylm pretrain`), of which shape,
reading which windows, against which noise.

`bit-base` and `bit-large` have RoBERTa's sizes, which deng2020 §4.1 takes for its bidirectional energies; `bit-base` is
also the network of clark2020 table 3, whose optimiser settings are the training preset `clark2020/pretrain`.

Noise models and the two-tower baseline are fractions of a shape in heads, width and feed-forward (clark2020 app. A):
two towers of a quarter (noise of Electric and ELECTRA-TT), one of a third (ELECTRA's generator), two of two thirds
(TwoTower).
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.models import LEFT_TO_RIGHT, Direction, TransformerShape, preset_shape
from energylm.config.training import TrainingConfig
from energylm.config.vocabulary import WINDOW_TOKENS


class LocalTransformerShape(TransformerShape):
    """A bidirectional encoder most of whose layers look at neighbours only (ModernBERT's form). A small masked model
    learns within minutes this way; one that has to find its neighbours among all positions first takes hours."""

    local_attention: int = Field(8, ge=2, description="Tokens that a local layer sees, half of them on either side.")
    first_spread: float = Field(
        0.02,
        gt=0,
        description="Of the first weights (ModernBERT: 0.02, for wide networks; 128 units learn faster from 0.05).",
    )

    @property
    def inner_width(self) -> int:
        """Of the feed-forward, whose gate doubles it."""
        return self.feedforward_width or 2 * self.width


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
    return preset_shape(preset, overrides, presets=MASKED_PRESETS)


NoiseKind = Literal["masked-lm", "two-tower"]
MASKED_LM: NoiseKind = "masked-lm"
TWO_TOWER: NoiseKind = "two-tower"
NOISE_SIZE: dict[NoiseKind, float] = {TWO_TOWER: 1 / 4, MASKED_LM: 1 / 3}  # clark2020 app. A


def fraction_of_shape(shape: TransformerShape, size: float) -> TransformerShape:
    """`size` times the heads, the width and the feed-forward, as many layers; exact where heads and widths divide, else
    the nearest that heads of a multiple of four units allow."""
    heads = max(1, round(size * shape.heads))
    unit = 4 * heads
    width = max(unit, round(size * shape.width / unit) * unit)
    changed = {"heads": heads, "width": width, "feedforward_width": max(4, round(size * shape.inner_width))}
    return type(shape).checked(shape.model_dump() | changed)


def tower_shape(shape: TransformerShape, size: float) -> TransformerShape:
    """One tower of a two-tower model: a causal transformer, so the local attention of small encoders is left out."""
    plain = {name: value for name, value in shape.model_dump().items() if name in TransformerShape.model_fields}
    return fraction_of_shape(TransformerShape.checked(plain), size)


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


class PretrainConfig(Config):
    """What all families share: corpus, shape, windows, training."""

    corpus: str = Field(description="The corpus folder, made by `energylm corpus build`.")
    preset: str = Field("bit-local-tiny", description=f"Shape of the network: {', '.join(MASKED_PRESETS)}.")
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    start: str | None = Field(
        None,
        # Left out of dumps, so that what was made before the key existed keeps its hash.
        exclude_if=lambda value: value is None,
        description="Start from this encoder (folder or name), with its shape, weights and token embeddings under a "
        "new head; the corpus must hold its tokens. Towers and generators take its embeddings alone.",
    )
    window: int = Field(
        WINDOW_TOKENS, ge=2, description="Tokens of a training window, and the most that a new network reads."
    )
    validation_windows: int | None = Field(
        512, ge=1, description="Validate on this many windows, evenly spread over the split; none = all of them."
    )
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _a_start_has_its_own_shape(self) -> Self:
        given = ["preset"] if "preset" in self.model_fields_set else []
        given += [f"network.{key}" for key in self.network if key != "dropout"]
        if self.start is not None and given:
            raise ValueError(
                f"{given[0]} came together with start {self.start!r}, whose shape is its own; drop one of the two "
                "(network.dropout alone goes with a start)"
            )
        return self

    def shaped(self, *, layers: int, width: int, heads: int, inner_width: int) -> Self:
        """The same with the sizes of its start in place of a preset's: what compute and noise are counted from."""
        sizes = {"layers": layers, "width": width, "heads": heads, "feedforward_width": inner_width}
        return self.model_copy(update={"preset": "bit-base", "network": {**self.network, **sizes}})


class PretrainMLMConfig(PretrainConfig):
    """A masked language model trained on a corpus: the start of a bidirectional energy."""

    masking: MaskingConfig = MaskingConfig()


class PretrainClozeConfig(PretrainConfig):
    """What the siblings of Electric share: they are compared at equal counted compute."""

    compute: float | None = Field(
        None,
        gt=0,
        description="Training FLOPs to spend (`models.compute` counts them): sets training.steps. None: these decide.",
    )


class PretrainContrastiveConfig(PretrainClozeConfig):
    """A network that tells the tokens of a text from those of a noise model, which learns beside it."""

    noise_rate: float = Field(0.15, gt=0, lt=1, description="Share of tokens that are noise: k = ⌈rate · n⌉ of n.")
    noise_size: float | None = Field(
        None, gt=0, le=1, description="Size of the noise model; none = the paper's, a quarter (two towers) or a third."
    )
    contrast_weight: float = Field(
        50.0, gt=0, description="Weight of the contrast beside the noise model's own likelihood (ELECTRA: 50)."
    )

    @property
    def noise_kind(self) -> NoiseKind:
        return TWO_TOWER

    @property
    def noise_shape(self) -> TransformerShape:
        """Of the noise model, or of each of its towers."""
        shape, size = masked_preset_shape(self.preset, self.network), self.noise_size or NOISE_SIZE[self.noise_kind]
        return tower_shape(shape, size) if self.noise_kind == TWO_TOWER else fraction_of_shape(shape, size)


class PretrainElectricConfig(PretrainContrastiveConfig):
    """Electric: token energies by noise-contrastive estimation against a two-tower noise model (clark2020)."""

    algorithm: Literal["efficient", "naive"] = Field(
        "efficient", description="clark2020's algorithm 2 (one pass), or 1 (k + 1 passes, the reference)."
    )


class PretrainElectraConfig(PretrainContrastiveConfig):
    """ELECTRA: replaced-token detection, against a masked language model or against two towers (ELECTRA-TT)."""

    noise: NoiseKind = Field(MASKED_LM, description="What draws the replacements: masked-lm or two-tower.")

    @property
    def noise_kind(self) -> NoiseKind:
        return self.noise


class PretrainTwoTowerConfig(PretrainClozeConfig):
    """The two-tower cloze model by itself, trained by maximum likelihood at every position."""

    size: float = Field(
        2 / 3, gt=0, le=1, description="Size of each tower as a fraction of the shape (clark2020: 2/3)."
    )


class LanguageModelSettings(Config):
    """A language model and its training: all but the corpus."""

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
    lora_rank: int | None = Field(
        None,
        ge=1,
        # Left out of dumps, so that what was made before the key existed keeps its hash.
        exclude_if=lambda value: value is None,
        description="Train adapters of this rank on all layers of the start instead of its weights (needs the package "
        "peft); they are merged into the saved model.",
    )
    direction: Direction = Field(LEFT_TO_RIGHT, description="The order in which the model reads text.")
    window: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of a training window (the papers': 160).")
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
        if self.lora_rank is not None and self.pretrained is None:
            raise ValueError(f"lora_rank {self.lora_rank} adapts a model, and none came to start from; add --start")
        return self
