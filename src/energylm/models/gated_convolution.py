"""A gated convolutional language model, Dauphin et al. 2017 (the generator "Conv" of bakhtin2019 table 9).

    h_l(X) = (X * W + b) ⊗ σ(X * V + c)                         Dauphin et al. 2017, eq. 1
    X_l = X_{l−1} + h_l(norm(X_{l−1}))                          a residual block

Each convolution sees the current token and kernel − 1 before it: kernel − 1 columns of zeros stand on the left, so
position t never depends on a later one. Layer normalisation takes the place of the paper's weight normalisation, so
that the same optimiser settings train it and the transformers; the softmax is a plain one, tied to the embedding. To
write token by token, `ConvolutionDecoder` keeps of each row the last kernel − 1 columns of every block, and no more.

Use it     as a generator of another architecture than the transformers; L layers see 1 + L·(kernel − 1) tokens.
Relations  `presets` builds it, `decoders` picks its decoder, `samplers.continuations` draws with that.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import CausalLMOutput

from energylm.models.contexts import check_network, pad_contexts


class GatedConvolutionConfig(PreTrainedConfig):
    """Sizes as in `config.models.ConvolutionShape`, under transformers' names."""

    model_type = "energylm_gated_convolution"

    vocab_size: int = 50257
    hidden_size: int = 1304
    embedding_size: int = 256
    num_hidden_layers: int = 12
    kernel_size: int = 4
    dropout: float = 0.1
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class Convolution(nn.Linear):
    """A convolution as a linear map of each window: on a CPU six times as fast as `Conv1d` for single steps."""

    def __init__(self, config: GatedConvolutionConfig) -> None:
        super().__init__(config.kernel_size * config.hidden_size, 2 * config.hidden_size)
        self.kernel_size = config.kernel_size

    def forward(self, columns_BSTD: Tensor) -> Tensor:  # (B, S + T, D) -> (B, T, 2D)
        return super().forward(columns_BSTD.unfold(1, self.kernel_size, 1).transpose(2, 3).flatten(2))


class GatedConvolutionBlock(nn.Module):
    def __init__(self, config: GatedConvolutionConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.convolution = Convolution(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, past_BSD: Tensor, mask_BT1: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The block's output, and its columns (B, S + T, D): S = kernel − 1 from before, then the T of this input.

        Positions whose mask is 0 become zeros, which is what stands before the beginning of a sequence.
        """
        inputs_BTD = self.norm(x_BTD)
        if mask_BT1 is not None:
            inputs_BTD = inputs_BTD * mask_BT1
        columns_BSTD = torch.cat([past_BSD, inputs_BTD], dim=1)
        return x_BTD + self.dropout(F.glu(self.convolution(columns_BSTD))), columns_BSTD


class GatedConvolutionLM(PreTrainedModel):
    config_class = GatedConvolutionConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: GatedConvolutionConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        self.widen = nn.Linear(config.embedding_size, config.hidden_size)
        self.blocks = nn.ModuleList(GatedConvolutionBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.narrow = nn.Linear(config.hidden_size, config.embedding_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = cast(nn.Embedding, value)  # transformers promises no more than a module

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput:
        """Logits (B, T, V), or those of the last `logits_to_keep` positions; the loss where `labels` (shifted here,
        −100 left out) are given. Padding may stand on either side if `attention_mask` marks it."""
        mask_BT1 = None if attention_mask is None else attention_mask[..., None].to(self.embedding.weight.dtype)
        x_BTD = self.embed(input_ids)
        for block in self.blocks:
            x_BTD, _ = block(x_BTD, self.nothing_before(x_BTD), mask_BT1)
        return causal_output(self.logits(x_BTD[:, -logits_to_keep:]), labels)

    def embed(self, input_ids: Tensor) -> Tensor:
        x_BTD: Tensor = self.widen(self.dropout(self.embedding(input_ids)))
        return x_BTD

    def nothing_before(self, x_BTD: Tensor) -> Tensor:
        """The columns (B, S, D) that stand before the beginning of a sequence."""
        return x_BTD.new_zeros(x_BTD.shape[0], self.config.kernel_size - 1, x_BTD.shape[-1])

    def logits(self, x_BTD: Tensor) -> Tensor:
        return F.linear(self.narrow(self.norm(x_BTD)), self.embedding.weight)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, Convolution):
            # A gated unit halves the spread of its input, hence 4 (Gehring et al. 2017); L residual branches add up.
            std = math.sqrt(4 / (module.in_features * self.config.num_hidden_layers))
            initialization.normal_(module.weight, std=std)


def causal_output(logits_BTV: Tensor, labels_BT: Tensor | None) -> CausalLMOutput:
    """Logits, and the mean loss of `labels` (shifted here, −100 left out) where they are given."""
    loss = None
    if labels_BT is not None:
        loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=-100)
    return CausalLMOutput(loss=loss, logits=logits_BTV)


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(GatedConvolutionConfig.model_type, GatedConvolutionConfig, exist_ok=True)
    AutoModelForCausalLM.register(GatedConvolutionConfig, GatedConvolutionLM, exist_ok=True)


class ConvolutionDecoder:
    """`contracts.ForkingDecoder`. Prefix and state are lists: the columns (B or R, kernel − 1, D) of each block."""

    def __init__(self, network: GatedConvolutionLM) -> None:
        self.network = network

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.config.vocab_size)

    @torch.no_grad()
    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[list[Tensor], Tensor]:
        check_network(self.network, longest=max(map(len, contexts), default=0))
        ids_BP, lengths_B = pad_contexts(contexts, device=self.network.device)
        kept = self.network.config.kernel_size - 1
        # Column j of a block's input stands at j + kept, so the last `kept` of a row begin at its length.
        last_BS = lengths_B[:, None] + torch.arange(kept, device=ids_BP.device)
        rows_B1 = torch.arange(len(contexts), device=ids_BP.device)[:, None]
        x_BPD, prefix = self.network.embed(ids_BP), []
        for block in self.network.blocks:
            x_BPD, columns = block(x_BPD, self.network.nothing_before(x_BPD))
            prefix.append(columns[rows_B1, last_BS])
        return prefix, self.network.logits(x_BPD[rows_B1, lengths_B[:, None] - 1])[:, 0]

    def fork(self, prefix: list[Tensor], *, copies: int, max_new_tokens: int) -> list[Tensor]:
        return [columns.repeat_interleave(copies, dim=0) for columns in prefix]

    @torch.no_grad()
    def step(self, state: list[Tensor], tokens_R: Tensor) -> Tensor:
        x_R1D = self.network.embed(tokens_R[:, None])
        for layer, block in enumerate(self.network.blocks):
            x_R1D, columns = block(x_R1D, state[layer])
            state[layer] = columns[:, 1:]
        return self.network.logits(x_R1D)[:, 0]

    def select(self, state: list[Tensor], rows_R: Tensor) -> None:
        state[:] = [columns[rows_R] for columns in state]

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        config = self.network.config
        columns = config.num_hidden_layers * config.kernel_size * config.hidden_size
        activations = 8 * config.hidden_size
        return int(self.network.embedding.weight.element_size() * (columns + activations + 4 * config.vocab_size))
