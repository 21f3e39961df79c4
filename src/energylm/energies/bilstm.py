"""The body of a BiLSTM energy: layers of two LSTMs, one reading forwards and one backwards.

    h_{l,t} = [LSTM→_l(h_{l−1})_t ; LSTM←_l(h_{l−1})_t]                 E(x) = w · (1/T) Σ_t h_{L,t} + b
                                                                        Bakhtin et al. 2019 §4.3
Schuster & Paliwal 1997. The backward LSTM reads each sequence reversed within its own length, so padding stands behind
the text for both and never changes an energy. (torch's packed sequences give the same numbers; on a CPU their backward
pass takes ten times as long.)

Use it     as an energy that reads order, without attention and without pretrained weights.
Relations  `energies.pooled` averages and projects; `energies.linear` ignores order.
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class BiLSTMConfig(PreTrainedConfig):
    """Sizes as in `config.energy_shapes.BiLSTMShape`, under transformers' names: `hidden_size` is the width of the
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
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        inputs = [config.embedding_size, *[config.hidden_size] * (config.num_hidden_layers - 1)]
        self.layers = nn.ModuleList(BiLSTMLayer(size, config.hidden_size // 2) for size in inputs)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = cast(nn.Embedding, value)  # transformers promises no more than a module

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
        return BaseModelOutput(last_hidden_state=x_BTE)  # type: ignore[arg-type]  # transformers says FloatTensor

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
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(BiLSTMConfig.model_type, BiLSTMConfig, exist_ok=True)
    AutoModel.register(BiLSTMConfig, BiLSTM, exist_ok=True)
