"""Bodies of energies with random weights from the presets of `config.energy_shapes`."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from energylm.config.energy_shapes import BiLSTMShape, energy_preset_shape
from energylm.energies.bilstm import BiLSTM, BiLSTMConfig
from energylm.energies.linear import BagOfTokens, BagOfTokensConfig


def build_energy_body(
    preset: str, *, vocabulary_size: int, overrides: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """A body of `preset`'s shape with weights from torch's global generator (the caller seeds it)."""
    shape = energy_preset_shape(preset, overrides)
    if not isinstance(shape, BiLSTMShape):
        return BagOfTokens(BagOfTokensConfig(vocab_size=vocabulary_size))
    return BiLSTM(
        BiLSTMConfig(
            vocab_size=vocabulary_size,
            embedding_size=shape.embedding_width,
            hidden_size=2 * shape.width,
            num_hidden_layers=shape.layers,
            dropout=shape.dropout,
        )
    )
