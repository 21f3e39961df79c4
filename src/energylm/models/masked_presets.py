"""Masked language models with random weights from the presets of `config.pretrain`.

They have BERT's form with one token type: RoBERTa's network (post-norm, GELU, tied output) without RoBERTa's shift of
positions by the padding index, so that any tokenizer serves, with a padding token or without; or, with local attention,
ModernBERT's form: rotary positions, gated feed-forward, every third layer from the first on over all positions.

Weights start at BERT's spread of 0.02 from width 768 on, and wider in narrower networks, where 0.02 would leave each
layer so faint a voice that the first hundred steps of a small run are lost.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, ElectraForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from energylm.config.pretrain import LocalTransformerShape, masked_preset_shape

BERT_SPREAD, BERT_WIDTH = 0.02, 768
MaskedLMNetwork = BertForMaskedLM | ModernBertForMaskedLM | ElectraForMaskedLM


class NetworkSizes(TypedDict):
    """What a network must know of the corpus it will read."""

    vocabulary_size: int
    max_length: int
    pad_token_id: int | None


def build_masked_network(
    preset: str,
    *,
    vocabulary_size: int,
    max_length: int,
    pad_token_id: int | None,
    overrides: Mapping[str, Any] | None = None,
) -> MaskedLMNetwork:
    """A network of `preset`'s shape with weights from torch's global generator (the training engine seeds it)."""
    shape = masked_preset_shape(preset, overrides)
    if isinstance(shape, LocalTransformerShape):
        return ModernBertForMaskedLM(
            local_config(shape, vocabulary_size=vocabulary_size, max_length=max_length, pad_token_id=pad_token_id)
        )
    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary_size,
            max_position_embeddings=max_length,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.inner_width,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            initializer_range=BERT_SPREAD * max(1.0, BERT_WIDTH / shape.width) ** 0.5,
            pad_token_id=pad_token_id,
        )
    )


def local_config(
    shape: LocalTransformerShape, *, vocabulary_size: int, max_length: int, pad_token_id: int | None
) -> ModernBertConfig:
    """ModernBERT's form with the sizes of `shape`."""
    without: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    return ModernBertConfig(
        vocab_size=vocabulary_size,
        max_position_embeddings=max_length,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner_width,
        local_attention=shape.local_attention,
        embedding_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        mlp_dropout=shape.dropout,
        initializer_range=shape.first_spread,
        pad_token_id=pad_token_id,
        **without,
    )


def token_logits(network: MaskedLMNetwork, hidden_MD: Tensor) -> Tensor:
    """(M, V) predictions at M chosen positions, whose hidden states these are."""
    if isinstance(network, ModernBertForMaskedLM):
        logits_MV: Tensor = network.decoder(network.head(hidden_MD))
    elif isinstance(network, ElectraForMaskedLM):
        logits_MV = network.generator_lm_head(network.generator_predictions(hidden_MD))
    else:
        logits_MV = network.cls(hidden_MD)
    return logits_MV
