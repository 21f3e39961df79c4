"""Steps a gated convolutional model, keeping of each row the last kernel − 1 columns of every block, and no more.

Relations  `gated_convolution` is the network; `samplers.continuations` draws with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from energylm.models.contexts import check_network, pad_contexts
from energylm.models.gated_convolution import GatedConvolutionLM


class ConvolutionDecoder:
    """`contracts.Decoder`. Prefix and state are both a list with the columns (B or R, kernel − 1, D) of each block."""

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

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        config = self.network.config
        columns = config.num_hidden_layers * config.kernel_size * config.hidden_size
        activations = 8 * config.hidden_size
        return int(self.network.embedding.weight.element_size() * (columns + activations + 4 * config.vocab_size))
