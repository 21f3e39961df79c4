"""The body of a linear energy: a bag of tokens, one weight each.

    E(x) = Σ_t u[x_t]                                   Bakhtin et al. 2019 §4.3, "Linear"

The order of tokens does not matter. It is an encoder of width 1, whose hidden state at a token is that token's weight;
`energies.pooled` adds them up. Weights start at 0: the loss is convex in them, so there is no symmetry to break.

Use it     as the floor that any energy must beat: what it finds is in the counts of words alone.
Relations  `energies.bilstm` and transformers read order; the first-order expansion of an attack is exact here.
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutput


class BagOfTokensConfig(PreTrainedConfig):
    model_type = "energylm_bag_of_tokens"

    vocab_size: int = 50257
    hidden_size: int = 1


class BagOfTokens(PreTrainedModel):
    config_class = BagOfTokensConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: BagOfTokensConfig) -> None:
        super().__init__(config)
        self.token_weight = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.token_weight

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.token_weight = cast(nn.Embedding, value)  # transformers promises no more than a module

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> BaseModelOutput:
        """The weight of each token, (B, T, 1); 0 where `attention_mask` is."""
        weight_BT1 = self.token_weight(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            weight_BT1 = torch.where(attention_mask[..., None] > 0, weight_BT1, 0.0)
        return BaseModelOutput(last_hidden_state=weight_BT1)  # type: ignore[arg-type]  # transformers says FloatTensor

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            initialization.zeros_(module.weight)


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(BagOfTokensConfig.model_type, BagOfTokensConfig, exist_ok=True)
    AutoModel.register(BagOfTokensConfig, BagOfTokens, exist_ok=True)
