"""The networks made here: shapes and presets of language models and energies, and the words that say what an energy is.

Sizes are those of bakhtin2019 (§4.3, tables 9 and 10) and deng2020 §4.1, for a byte-level BPE of 50,257 tokens, and
small ones for CPUs. Where a printed setting cannot be, we choose and say so:

`huge`       25 heads do not divide 1536: 24.
`balm`       a width of 1568 gives 433 M parameters, not the printed 408 M: 1520 gives 409 M.
`*-24l`      "the same number of parameters" with twice the layers, widths unprinted: 752 and 1104 stay within 1 %.
`conv`       only 13 M + 164 M and 12 layers are printed: an embedding of 256, a width of 1304 and a kernel of 4 fit.

    table 10      here            parameters in millions, embeddings + the rest
    Linear        linear          0.05 (printed as 0.1)
    BiLSTM        bilstm-small    26 + 23
    BiLSTM Big    bilstm-big      39 + 90
    UniTransf     big             51 + 151        a causal transformer: `PRESETS`
    BiTransf      bit-large       51 + 304        a bidirectional one: `config.pretrain.MASKED_PRESETS`

The text prints 758 and 2014 units for BiLSTM Big, which would make 337 M; the table's 39 + 90 M are those of 768 and
1024. Dropout is not printed.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.errors import ConfigError
from energylm.registry import LOSSES, Named

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


# Causal or bidirectional transformers (deng2020 §4.1), one weight a token, bidirectional LSTMs (bakhtin2019 §4.3).
EnergyKind = Literal["unit", "bit", "linear", "bilstm"]
UNIT: EnergyKind = "unit"
BIT: EnergyKind = "bit"
LINEAR: EnergyKind = "linear"
BILSTM: EnergyKind = "bilstm"
KIND_WORDS: dict[EnergyKind, str] = {
    UNIT: "causal",
    BIT: "bidirectional",
    LINEAR: "bag-of-tokens",
    BILSTM: "bidirectional LSTM",
}

# Over all tokens (deng2020), the first position (bakhtin2019's BiTransf), or the sum (bakhtin2019's Linear; lists).
Pooling = Literal["mean", "first", "sum"]
MEAN: Pooling = "mean"
FIRST: Pooling = "first"
SUM: Pooling = "sum"
POOLINGS: dict[EnergyKind, tuple[Pooling, ...]] = {  # what each kind can do; the first is its default
    UNIT: (MEAN, SUM),
    BIT: (MEAN, FIRST, SUM),
    LINEAR: (SUM,),
    BILSTM: (MEAN,),
}

Reads = Literal["tokens", "text"]  # the language model's own ids, or decoded text: any encoder over any model
TOKENS: Reads = "tokens"
TEXT: Reads = "text"

LongTexts = Literal["refuse", "cut-left"]  # what becomes of text that is longer than the encoder
REFUSE: LongTexts = "refuse"
CUT_LEFT: LongTexts = "cut-left"

# The losses, by name (`registry.LOSSES`). At the minimum of `nce` alone −E = log P_data − log P_LM.
Objective = Annotated[str, Named(LOSSES)]
NCE = "nce"
RANKING = "ranking"

DEFAULT_DETECTOR = "default"  # as a detector's name: the one that comes with the package
ZeroShotScore = Literal["log-likelihood", "log-rank", "entropy", "lrr", "curvature", "binoculars"]
Towards = Literal["real", "fake"]  # of an attack on an energy: which verdict it wants


class LinearShape(Config):
    """One weight a token: nothing to choose."""


class BiLSTMShape(Config):
    """Layers of two LSTMs each, one reading forwards and one backwards."""

    layers: int = Field(4, ge=1, description="Bidirectional layers.")
    embedding_width: int = Field(ge=1, description="Size of the embeddings.")
    width: int = Field(ge=1, description="Hidden units of each direction.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and between layers.")


EnergyShape = LinearShape | BiLSTMShape

ENERGY_PRESETS: dict[str, EnergyShape] = {
    "linear": LinearShape(),
    "bilstm-tiny": BiLSTMShape(layers=2, embedding_width=64, width=64, dropout=0.0),  # minutes on two CPU cores
    "bilstm-small": BiLSTMShape(embedding_width=512, width=512),  # bakhtin2019 BiLSTMsmall
    "bilstm-big": BiLSTMShape(embedding_width=768, width=1024),  # bakhtin2019 BiLSTMbig
}


def energy_preset_shape(preset: str, overrides: Mapping[str, Any] | None = None) -> EnergyShape:
    """The shape called `preset`, with some of its keys replaced."""
    return preset_shape(preset, overrides, presets=ENERGY_PRESETS)


def preset_kind(preset: str) -> EnergyKind:
    return LINEAR if isinstance(ENERGY_PRESETS[preset], LinearShape) else BILSTM


# Exact studies compare objectives of one energy on languages that can be enumerated (goyal2021 §6.2.2):
#
#     likelihood              E(y) + log Z                                  sums over all V^T sequences at each update
#     pseudo_likelihood       − Σ_t log p(y_t | rest), conditionals of E    over all one-token variants of a sequence
#     masked                  − Σ_t log p_mlm(y_t | rest)                   one pass
#     projection              Σ_t KL(p_mlm ‖ p), p_mlm a fixed masked model    as pseudo-likelihood
#     projection_and_pseudo   the sum of the last and pseudo-likelihood        as pseudo-likelihood
#
# Languages: palindromes, hidden Markov models of low and of high entropy (all of five symbols and five positions), and
# English words as phonemes (39 symbols, up to six), whose likelihood is out of reach as an objective: every update
# would sum over 39⁶ sequences.
StudyLanguage = Literal["palindromes", "hmm_low", "hmm_high", "phonemes"]
PHONEMES: StudyLanguage = "phonemes"

StudyObjective = Literal["likelihood", "pseudo_likelihood", "masked", "projection", "projection_and_pseudo"]
LIKELIHOOD: StudyObjective = "likelihood"
PSEUDO_LIKELIHOOD: StudyObjective = "pseudo_likelihood"
MASKED: StudyObjective = "masked"
PROJECTION: StudyObjective = "projection"
PROJECTION_AND_PSEUDO: StudyObjective = "projection_and_pseudo"
PROJECTIONS = (PROJECTION, PROJECTION_AND_PSEUDO)  # which need a masked model, the teacher

TEACHER: Literal["teacher"] = "teacher"
StudyModel = StudyObjective | Literal["teacher"]  # whatever a study trains
