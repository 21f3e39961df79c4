"""A conditional masked network that has read its sources, as conditionals over target tokens.

    f(v, h(y_\\I, x))      at every hidden position of the set I, given the source x that a row names

Sources are read once; all rows, masked copies and chains of a source share what was read. Targets have no frame: their
length is known beforehand (`likely_lengths`), so nothing marks their end.

Relations  `masked` is the same without sources, and cuts rows into micro-batches for both; `cmlm` is the network.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.errors import DataError, ModelError
from energylm.models.cmlm import ConditionalMaskedLM, SourceStates
from energylm.models.masked import MaskedNetwork

SOURCES_AT_ONCE = 256


class ConditionalMaskedNetwork(MaskedNetwork):
    """`contracts.MaskedModel`: `source_R` counts `sources`, which are lists of token ids."""

    network: ConditionalMaskedLM

    def __init__(self, network: ConditionalMaskedLM, sources: Sequence[Sequence[int]], *, mask_token_id: int) -> None:
        super().__init__(network, mask_token_id=mask_token_id)
        self.memory = self._read(sources)

    @torch.no_grad()
    def logits(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, T, V) at every position of one right-padded target for each source, in their order."""
        tokens_BT, lengths_B = self._readable(tokens_BT, lengths_B)
        every_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        logits_NV = self._logits_at(tokens_BT, lengths_B, every_BT, source_R=None)
        return logits_NV.view(*tokens_BT.shape, -1)

    @torch.no_grad()
    def likely_lengths(self, count: int) -> list[list[int]]:
        """The `count` likeliest target lengths of every source, likeliest first."""
        if count > self.network.config.max_position_embeddings:
            raise ModelError(
                f"{count} lengths came but targets have at most {self.network.config.max_position_embeddings} tokens; "
                "try fewer lengths"
            )
        lengths: list[list[int]] = (self.network.length_log_probs(self.memory).topk(count).indices + 1).tolist()
        return lengths

    def _logits_at(self, tokens_RS: Tensor, lengths_R: Tensor, hidden_RS: Tensor, *, source_R: Tensor | None) -> Tensor:
        if source_R is None:
            if len(tokens_RS) != len(self.memory.lengths_B):
                raise ModelError(
                    f"{len(tokens_RS)} targets came for {len(self.memory.lengths_B)} sources; say with source_R which "
                    "source each has"
                )
            return self.network.logits_at(tokens_RS, lengths_R, hidden_RS, self.memory)
        read_M, source_R = source_R.to(tokens_RS.device).unique(return_inverse=True)
        return self.network.logits_at(tokens_RS, lengths_R, hidden_RS, self.memory.pick(read_M), source_R=source_R)

    @torch.no_grad()
    def _read(self, sources: Sequence[Sequence[int]]) -> SourceStates:
        if self.network.training:
            raise ModelError("the masked model is in training mode, so dropout would change its scores; call .eval()")
        longest = self.network.config.max_position_embeddings
        for number, ids in enumerate(sources, start=1):
            if not 0 < len(ids) <= longest:
                what = "is empty" if not ids else f"has {len(ids):,} tokens but the model holds {longest:,}"
                raise DataError(f"source {number} {what}; leave it out" + (", or shorten it" if ids else ""))
        lengths_B = torch.tensor([len(ids) for ids in sources])
        widest = int(lengths_B.max())
        parts = []
        for first in range(0, len(sources), SOURCES_AT_ONCE):
            rows = [torch.tensor(ids) for ids in sources[first : first + SOURCES_AT_ONCE]]
            source_BS = pad_sequence(rows, batch_first=True).to(self.network.device)
            states_BSD = self.network.encode(source_BS, lengths_B[first : first + len(rows)].to(source_BS.device))
            parts.append(torch.nn.functional.pad(states_BSD.states_BSD, (0, 0, 0, widest - source_BS.shape[1])))
        return SourceStates(torch.cat(parts), lengths_B.to(self.network.device))
