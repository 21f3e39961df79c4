"""Bodies of energies that are no transformers, and the first layers of those that are.

    E(x) = Σ_t u[x_t]                                                         `BagOfTokens`, "Linear"
    h_{l,t} = [LSTM→_l(h_{l−1})_t ; LSTM←_l(h_{l−1})_t],   E(x) = w · (1/T) Σ_t h_{L,t} + b     `BiLSTM`
                                                                              both Bakhtin et al. 2019 §4.3
The bag of tokens ignores order. It is an encoder of width 1, whose hidden state at a token is that token's weight.
Weights start at 0: the loss is convex in them, so there is no symmetry to break. The backward LSTM (Schuster & Paliwal
1997) reads each sequence reversed within its own length, so padding stands behind the text for both and never changes
an energy. (torch's packed sequences give the same numbers; on a CPU their backward pass takes ten times as long.)

Use it     the bag as the floor that any energy must beat: what it finds is in the counts of words alone; the BiLSTM as
           an energy that reads order without attention and without pretrained weights.
Relations  `pooled` adds up or averages, and projects. The first-order expansion of an attack is exact for the bag.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutput

from energylm.config.models import BiLSTMShape, energy_preset_shape
from energylm.errors import ModelError


class BagOfTokensConfig(PreTrainedConfig):
    model_type = "energylm_bag_of_tokens"

    vocab_size: int = 50257
    hidden_size: int = 1


class BagOfTokens(PreTrainedModel):
    config_class = BagOfTokensConfig
    _input_embed_layer = "token_weight"

    def __init__(self, config: BagOfTokensConfig) -> None:
        super().__init__(config)
        self.token_weight = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> BaseModelOutput:
        """The weight of each token, (B, T, 1); 0 where `attention_mask` is."""
        weight_BT1 = self.token_weight(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            weight_BT1 = torch.where(attention_mask[..., None] > 0, weight_BT1, 0.0)
        return BaseModelOutput(last_hidden_state=weight_BT1)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            initialization.zeros_(module.weight)


class BiLSTMConfig(PreTrainedConfig):
    """Sizes as in `config.models.BiLSTMShape`, under transformers' names: `hidden_size` is the width of the
    states that come out, both directions together."""

    model_type = "energylm_bilstm"

    vocab_size: int = 50257
    embedding_size: int = 512
    hidden_size: int = 1024
    num_hidden_layers: int = 4
    dropout: float = 0.1
    initializer_range: float = 0.1


class BiLSTMLayer(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(inputs, width, batch_first=True)
        self.backwards = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, x_BTE: Tensor, reversed_BT: Tensor) -> Tensor:
        """(B, T, 2 · width); row b of `reversed_BT` lists the positions of sequence b from its end to its beginning."""
        ahead_BTD, _ = self.forwards(x_BTE)
        back_BTD, _ = self.backwards(_taken(x_BTE, reversed_BT))
        return torch.cat([ahead_BTD, _taken(back_BTD, reversed_BT)], dim=-1)


class BiLSTM(PreTrainedModel):
    config_class = BiLSTMConfig
    _input_embed_layer = "embedding"

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        inputs = [config.embedding_size, *[config.hidden_size] * (config.num_hidden_layers - 1)]
        self.layers = nn.ModuleList(BiLSTMLayer(size, config.hidden_size // 2) for size in inputs)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> BaseModelOutput:
        """States (B, T, D) of the last layer. Padding, which `attention_mask` marks, stands on the right; its states
        mean nothing."""
        x_BTE = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        position_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
        length_B1 = x_BTE.shape[1] if attention_mask is None else attention_mask.sum(1, keepdim=True)
        mirrored_BT = (length_B1 - 1 - position_T).expand(x_BTE.shape[:2])
        reversed_BT = torch.where(mirrored_BT >= 0, mirrored_BT, position_T)  # padding stays in its place
        for layer in self.layers:
            x_BTE = layer(self.dropout(x_BTE), reversed_BT)
        return BaseModelOutput(last_hidden_state=x_BTE)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, nn.LSTM) and not getattr(module.bias_ih_l0, "_is_hf_initialized", False):
            # A forget gate that starts open lets the first gradients reach back (Jozefowicz et al. 2015). Gates stand
            # in the order input, forget, cell, output.
            with torch.no_grad():
                cast(Tensor, module.bias_ih_l0)[module.hidden_size : 2 * module.hidden_size] = 1.0


def _taken(values_BTE: Tensor, order_BT: Tensor) -> Tensor:
    return values_BTE.gather(1, order_BT[..., None].expand_as(values_BTE))


def register() -> None:
    """Teach transformers' Auto classes these architectures; calling it again changes nothing."""
    for config, body in ((BagOfTokensConfig, BagOfTokens), (BiLSTMConfig, BiLSTM)):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, body, exist_ok=True)


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


def keep_first_layers(encoder: PreTrainedModel, *, share: float) -> int:
    """Drop all but the first ⌈share · layers⌉ layers, in place; returns how many stay.

    What tells a machine's text from a person's lies nearer to the words than to the meaning: of all-MiniLM-L6, made for
    the meaning of sentences, the third of six layers tells GPT-2 XL from people at 0.87 AUROC by a linear map, the last
    at 0.65 (blocks of 96 tokens). It also costs half.
    """
    config = encoder.config.get_text_config()
    layers: int = config.num_hidden_layers
    kept = max(1, -(-int(share * layers * 1000) // 1000))
    if kept == layers:
        return layers
    stacks = [
        (parent, name, child)
        for parent in encoder.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == layers
    ]
    if len(stacks) != 1:
        raise ModelError(
            f"{config.model_type} does not show which of its parts are its {layers} layers, so none can be left out; "
            "set depth to 1"
        )
    parent, name, stack = stacks[0]
    setattr(parent, name, stack[:kept])
    config.num_hidden_layers = kept
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:kept]
    return kept
