"""Networks with random weights from the presets of `config.models`, and the width for a given number of parameters.

Transformers are GPT-2's form (layer norm before each part, learned positions, output tied to the embedding) with the
fused `gelu_pytorch_tanh`, which is the same function as GPT-2's `gelu_new`. `conv…` is `gated_convolution`.

Deng et al. 2020 compare the joint model with a language model of its size (BALM, §4.1) that keeps the number of layers
and is wider: `width_for`. Widths go in steps of the number of heads, so the count is met as nearly as such a step
allows.

Relations  `cloze_presets` has the masked networks; `energylm lm train` starts from what is built here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from energylm.config.models import PRESETS, ConvolutionShape, Shape, TransformerShape, preset_shape
from energylm.errors import ConfigError
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


def count_parameters(network: nn.Module) -> int:
    """Tied tensors once."""
    return sum(parameter.numel() for parameter in network.parameters())


def width_for(
    parameters: int, preset: str, *, vocabulary_size: int, max_length: int, overrides: Mapping[str, Any] | None = None
) -> int:
    """The width at which a network of `preset`'s other sizes comes nearest to having `parameters` parameters."""
    shape: Shape = preset_shape(preset, overrides)
    step = shape.heads if isinstance(shape, TransformerShape) else 1

    def count(steps: int) -> int:
        wider = {**(overrides or {}), "width": steps * step}
        with torch.device("meta"):
            network = build_network(
                preset, vocabulary_size=vocabulary_size, max_length=max_length, eos_token_id=None, overrides=wider
            )
        return count_parameters(network)

    if parameters < count(1):
        raise ConfigError(
            f"no width of {preset!r} is so small that it has {parameters:,} parameters; take fewer layers"
        )
    below, above = 1, 2
    while count(above) < parameters:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < parameters else (below, middle)
    return step * min((below, above), key=lambda steps: abs(count(steps) - parameters))
