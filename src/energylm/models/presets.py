"""Networks with random weights from the presets of `config.models`: what `energylm lm train` starts from.

Transformers are GPT-2's form (layer norm before each part, learned positions, output tied to the embedding) with the
fused `gelu_pytorch_tanh`, which is the same function as GPT-2's `gelu_new`. `conv…` is `gated_convolution`.
"""

from collections.abc import Mapping
from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from energylm.config.models import PRESETS, ConvolutionShape, Shape, preset_shape
from energylm.models.gated_convolution import GatedConvolutionConfig, GatedConvolutionLM

__all__ = ["PRESETS", "build_network"]


def build_network(
    preset: str,
    *,
    vocabulary_size: int,
    max_length: int,
    eos_token_id: int | None,
    overrides: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A network of `preset`'s shape with weights from torch's global generator (the training engine seeds it).

    A sequence begins after the end-of-sequence token of the one before it, so that token is the start token too.
    `max_length` bounds the sequences of a transformer; a convolution has no bound.
    """
    shape: Shape = preset_shape(preset, overrides)
    if isinstance(shape, ConvolutionShape):
        return GatedConvolutionLM(
            GatedConvolutionConfig(
                vocab_size=vocabulary_size,
                hidden_size=shape.width,
                embedding_size=shape.embedding_width,
                num_hidden_layers=shape.layers,
                kernel_size=shape.kernel,
                dropout=shape.dropout,
                bos_token_id=eos_token_id,
                eos_token_id=eos_token_id,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary_size,
            n_positions=max_length,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.feedforward_width,
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
            bos_token_id=eos_token_id,
            eos_token_id=eos_token_id,
        )
    )
