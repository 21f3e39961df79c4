"""Shapes of the energies that are no transformers: bakhtin2019 §4.3 and table 10, and small ones for CPUs.

    table 10      here            parameters in millions, at 50,257 tokens
    Linear        linear          0.05 (printed as 0.1)
    BiLSTM        bilstm-small    26 + 23
    BiLSTM Big    bilstm-big      39 + 90
    UniTransf     big             51 + 151        a causal transformer: `config.models.PRESETS`
    BiTransf      bit-large       51 + 304        a bidirectional one: `config.pretrain.MASKED_PRESETS`

The text prints 758 and 2014 units for BiLSTM Big, which would make 337 M; the table's 39 + 90 M are those of 768 and
1024. Dropout is not printed.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from energylm.config.base import Config
from energylm.config.energy import BILSTM, LINEAR, EnergyKind
from energylm.config.models import preset_shape


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
