"""Masked language models with random weights from the presets of `config.pretrain`.

They have BERT's form with one token type: RoBERTa's network (post-norm, GELU, tied output) without RoBERTa's shift of
positions by the padding index, so that any tokenizer serves, with a padding token or without.

Weights start at BERT's spread of 0.02 from width 768 on, and wider in narrower networks, where 0.02 would leave each
layer so faint a voice that the first hundred steps of a small run are lost.
"""

from collections.abc import Mapping
from typing import Any

from transformers import BertConfig, BertForMaskedLM

from energylm.config.pretrain import masked_preset_shape

BERT_SPREAD, BERT_WIDTH = 0.02, 768


def build_masked_network(
    preset: str,
    *,
    vocabulary_size: int,
    max_length: int,
    pad_token_id: int | None,
    overrides: Mapping[str, Any] | None = None,
) -> BertForMaskedLM:
    """A network of `preset`'s shape with weights from torch's global generator (the training engine seeds it)."""
    shape = masked_preset_shape(preset, overrides)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary_size,
            max_position_embeddings=max_length,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.feedforward_width or 4 * shape.width,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            initializer_range=BERT_SPREAD * max(1.0, BERT_WIDTH / shape.width) ** 0.5,
            pad_token_id=pad_token_id,
        )
    )
