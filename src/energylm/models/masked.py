r"""Masked networks as conditionals over token ids: logits of hidden tokens given those around them, and a source maybe.

    f(v, h(y_\I))         for v in the vocabulary, at every hidden position of the set I            Goyal 2021, §6.2.1
    f(v, h(y_\I, x))      the same, given the source x that a row names: `ConditionalMaskedNetwork`

Sequences come without the tokens that frame them ([CLS] … [SEP]): where the network was trained with a frame, it is put
around every sequence here, read as context and never hidden. Only hidden positions go through the output layer, and
in BERT's relatives through the last feed-forward: hooks hand just these on, so every family keeps its own code, or they
are read from packed weights where there are some. Rows go through in micro-batches of similar length, whatever their
number.

Sources are read once; all rows, masked copies and chains of a source share what was read. Targets have no frame: their
length is known beforehand (`likely_lengths`), so nothing marks their end.

Relations  `contracts.MaskedModel` is the promise kept here; `cmlm` is the network that reads sources;
           `bundles.masked_language_model` adds text and folders, `energies.masked_lm` an energy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForMaskedLM, ElectraForMaskedLM, PreTrainedModel

from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.models.cmlm import ConditionalMaskedLM, SourceStates
from energylm.models.contexts import length_batches, longest_input, tokens_at_once
from energylm.models.packed_passes import packed_states_at, why_not_packed_encoder

LIKE_BERT = ("bert", "roberta", "electra")  # same modules under the same names, the residual within `attention.output`


class MaskedNetwork:
    """`contracts.MaskedModel` around a ForMaskedLM network that is in evaluation mode.

    `prefix` and `suffix` are the ids that the network expects before and after each sequence.
    """

    def __init__(
        self, network: PreTrainedModel, *, mask_token_id: int, prefix: Sequence[int] = (), suffix: Sequence[int] = ()
    ) -> None:
        self.network, self.mask_token_id = network, mask_token_id
        self.prefix, self.suffix = tuple(prefix), tuple(suffix)

    @property
    def vocabulary_size(self) -> int:
        return int(cast(nn.Embedding, self.network.get_input_embeddings()).weight.shape[0])

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence, frame not counted, that the network's positions hold; None where nothing limits it."""
        limit = longest_input(self.network)
        return None if limit is None else limit - len(self.prefix) - len(self.suffix)

    @torch.no_grad()
    def logits(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, T, V) at every position of right-padded sequences that are read as they are: nothing hidden by us."""
        framed_BS, framed_lengths_B = self._framed(*self._readable(tokens_BT, lengths_B))
        logits_BSV: Tensor = self._run(framed_BS, framed_lengths_B).logits
        return logits_BSV[:, len(self.prefix) : len(self.prefix) + tokens_BT.shape[1]]

    @torch.no_grad()
    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        """(N, V) at the N hidden positions, row by row; `source_R` is for networks that read a source beside."""
        tokens_RT, lengths_R = self._readable(tokens_RT, lengths_R)
        hidden_RT = hidden_RT.to(tokens_RT.device)
        framed_RS, framed_lengths_R = self._framed(tokens_RT.masked_fill(hidden_RT, self.mask_token_id), lengths_R)
        after = framed_RS.shape[1] - hidden_RT.shape[1] - len(self.prefix)
        hidden_RS = torch.nn.functional.pad(hidden_RT, (len(self.prefix), after))
        batches = self._micro_batches(framed_lengths_R)
        if len(batches) == 1 and int(framed_lengths_R.min()) == framed_RS.shape[1]:
            return self._logits_at(framed_RS, framed_lengths_R, hidden_RS, source_R=source_R)
        slots_RS = (hidden_RS.flatten().cumsum(0) - 1).view_as(hidden_RS)
        count = int(hidden_RS.sum())
        logits_NV = torch.empty(count, self.vocabulary_size, device=framed_RS.device, dtype=self.network.dtype)
        for rows, longest in batches:
            chosen = hidden_RS[rows, :longest]
            sources = None if source_R is None else source_R.to(rows.device)[rows]
            logits_MV = self._logits_at(framed_RS[rows, :longest], framed_lengths_R[rows], chosen, source_R=sources)
            logits_NV[slots_RS[rows, :longest][chosen]] = logits_MV
        return logits_NV

    def _logits_at(self, tokens_RS: Tensor, lengths_R: Tensor, hidden_RS: Tensor, *, source_R: Tensor | None) -> Tensor:
        head, body = _head(self.network), cast(PreTrainedModel, self.network.base_model)
        if head is not None and why_not_packed_encoder(body) is None:
            real_RS = torch.arange(tokens_RS.shape[1]) < lengths_R[:, None]
            return head(packed_states_at(body, tokens_RS, real_RS, hidden_RS))
        with _only_positions(self.network, hidden_RS):
            logits_1NV: Tensor = self._run(tokens_RS, lengths_R).logits
        return logits_1NV[0]

    def _run(self, tokens_RS: Tensor, lengths_R: Tensor) -> Any:
        # With padding on the right every family's own positions are right for the real tokens.
        real_RS = torch.arange(tokens_RS.shape[1], device=tokens_RS.device) < lengths_R[:, None]
        return self.network(input_ids=tokens_RS, attention_mask=real_RS.long())

    def _framed(self, tokens_RT: Tensor, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        if not self.prefix and not self.suffix:
            return tokens_RT, lengths_R
        before = tokens_RT.new_tensor(self.prefix).expand(len(tokens_RT), -1)
        framed_RS = torch.nn.functional.pad(torch.cat([before, tokens_RT], dim=1), (0, len(self.suffix)))
        for offset, token in enumerate(self.suffix):
            framed_RS.scatter_(1, (len(self.prefix) + lengths_R + offset)[:, None], token)
        return framed_RS, lengths_R + len(self.prefix) + len(self.suffix)

    def _readable(self, tokens_RT: Tensor, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with padding set to 0, on the network's device, if it can read them at all."""
        if self.network.training:
            raise ModelError("the masked model is in training mode, so dropout would change its scores; call .eval()")
        tokens_RT, lengths_R = tokens_RT.to(self.network.device), lengths_R.to(self.network.device)
        longest = int(lengths_R.max()) if len(lengths_R) else 0
        if self.max_tokens is not None and longest > self.max_tokens:
            raise ModelError(
                f"a sequence of {longest:,} tokens is longer than the {self.max_tokens:,} that the masked model holds; "
                "shorten it"
            )
        real_RT = torch.arange(tokens_RT.shape[1], device=tokens_RT.device) < lengths_R[:, None]
        tokens_RT = tokens_RT.masked_fill(~real_RT, 0)
        if tokens_RT.numel() and not 0 <= int(tokens_RT.min()) <= int(tokens_RT.max()) < self.vocabulary_size:
            raise VocabularyMismatch(
                f"token ids from {int(tokens_RT.min())} to {int(tokens_RT.max())} came but the masked model knows ids "
                f"0 to {self.vocabulary_size - 1}; encode the text with this model's own tokenizer"
            )
        return tokens_RT, lengths_R

    def _micro_batches(self, lengths_R: Tensor) -> list[tuple[Tensor, int]]:
        """Rows that go through the network together and the length of the longest, longest first."""
        return length_batches(lengths_R, tokens_at_once=tokens_at_once(self.network))


def _head(network: Any) -> Callable[[Tensor], Tensor] | None:
    """What makes logits of the last states, of the networks for which it is known."""
    if type(network) is BertForMaskedLM:
        return cast(Callable[[Tensor], Tensor], network.cls)
    if type(network) is ElectraForMaskedLM:
        return lambda states: network.generator_lm_head(network.generator_predictions(states))
    return None


@contextmanager
def _only_positions(network: PreTrainedModel, chosen_RS: Tensor) -> Iterator[None]:
    """Within, what works position by position at the network's end sees the chosen positions only, as one long
    sequence: logits are (1, N, V)."""

    def choose(states_RSD: Tensor) -> Tensor:
        return states_RSD[chosen_RS][None]

    def choose_inputs(_module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(map(choose, states))

    def choose_output(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = choose(output.last_hidden_state)
        return output

    body: Any = network.base_model  # what it is made of, the family knows
    if network.config.model_type in LIKE_BERT:  # after its attention, the last layer mixes no positions
        handle = body.encoder.layer[-1].attention.output.register_forward_pre_hook(choose_inputs)
    else:
        handle = body.register_forward_hook(choose_output)
    try:
        yield
    finally:
        handle.remove()


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
