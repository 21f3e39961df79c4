"""A causal network of transformers as a normalised language model over token ids, read in either direction.

    log P(x) = Σ_t log P(x_t | x_<t)      left-to-right
    log P(x) = Σ_t log P(x_t | x_>t)      right-to-left: the network reads every sequence reversed (bakhtin2019 §4.2)

Callers always see natural order. The context of a right-to-left model stands at the right end, so there `first` counts
tokens from the right. Sequences go through the network in micro-batches of similar length whose logits fit a budget.
The model never writes a token of `forbidden_token_ids`: their probability is shared out among the others.

Relations  `contracts.CausalModel` is the promise kept here; `bundles.language_model` adds text and folders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from energylm.config.models import LEFT_TO_RIGHT, RIGHT_TO_LEFT, Direction
from energylm.contracts import Decoder
from energylm.errors import DataError, ModelError, VocabularyMismatch
from energylm.estimators.zero_shot import TokenStatistics, token_statistics
from energylm.models.contexts import length_batches, positions, refuse_training_mode, takes, tokens_at_once
from energylm.models.decoders import ForbiddenTokensDecoder, decoder_for, forbid_tokens
from energylm.models.packed import why_not_packed
from energylm.models.packed_passes import causal_logits

LOGITS_PER_MICRO_BATCH = 1 << 26  # 256 MB of float32
LOGITS_PER_REDUCTION = 1 << 22  # logsumexp needs a copy of what it reduces, so it gets a slice of positions at a time


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded rows that go through the network together; the first `first` ≥ 1 tokens of each are given."""

    tokens_BT: Tensor
    lengths_B: Tensor
    first: int
    vocabulary_size: int

    @property
    def targets(self) -> Tensor:
        """(B, T − first): what is scored."""
        return self.tokens_BT[:, self.first :]

    @property
    def real(self) -> Tensor:
        """(B, T − first): which of them are no padding."""
        positions = torch.arange(self.first, self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return positions < self.lengths_B[:, None]

    @property
    def slice(self) -> int:
        """Positions whose logits are reduced at a time."""
        return max(1, LOGITS_PER_REDUCTION // (len(self.tokens_BT) * self.vocabulary_size))


class CausalLanguageModel:
    """`contracts.CausalModel` around a network that is in evaluation mode."""

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        start_token_id: int | None,
        eos_token_id: int | None,
        direction: Direction = LEFT_TO_RIGHT,
        forbidden_token_ids: Sequence[int] = (),
    ) -> None:
        if direction not in (LEFT_TO_RIGHT, RIGHT_TO_LEFT):
            raise ModelError(f"direction must be {LEFT_TO_RIGHT!r} or {RIGHT_TO_LEFT!r}, came {direction!r}")
        self.network = network
        self.start_token_id = start_token_id
        self.eos_token_id = eos_token_id
        self.direction = direction
        self.forbidden_token_ids = tuple(forbidden_token_ids)

    @property
    def vocabulary_size(self) -> int:
        return int(self.network.config.get_text_config().vocab_size)

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the network's positions hold; None where nothing limits it."""
        return positions(self.network)

    def decoder(self) -> Decoder:
        """Continues token sequences in the order in which the network reads them (reversed for right-to-left)."""
        decoder = decoder_for(self.network)
        if not self.forbidden_token_ids:
            return decoder
        return ForbiddenTokensDecoder(decoder, token_ids=self.forbidden_token_ids)

    def without(self, token_ids: Sequence[int]) -> "CausalLanguageModel":
        """The same network as a model of texts that hold none of these tokens; with EOS among them they never end."""
        return CausalLanguageModel(
            self.network,
            start_token_id=self.start_token_id,
            eos_token_id=None if self.eos_token_id in token_ids else self.eos_token_id,
            direction=self.direction,
            forbidden_token_ids=sorted({*self.forbidden_token_ids, *token_ids}),
        )

    @torch.no_grad()
    def token_log_probs(self, tokens_BT: Tensor, lengths_B: Tensor, *, first: int = 0) -> Tensor:
        """(B, T − first): the log-probability of each token given those that the network reads before it.

        Left-to-right, column j belongs to position first + j; right-to-left, where the last `first` tokens are the
        context, it belongs to position j. 0 past the end. `first = 0` reads the start token before all else.
        """
        return self._measured(tokens_BT, lengths_B, self._log_probs, first=first, measures=1)[0]

    @torch.no_grad()
    def token_statistics(
        self, tokens_BT: Tensor, lengths_B: Tensor, *, first: int = 0, observer: "CausalLanguageModel | None" = None
    ) -> TokenStatistics:
        """What zero-shot scores are made of, (B, T − first) each as `token_log_probs`; the pass over the texts is the
        same one. An `observer` reads the same ids in a pass of its own."""
        if observer is not None:
            self._check_observer(observer)

        def measure(batch: MicroBatch) -> Tensor:
            others = [] if observer is None else [observer._logits(batch)]
            slices = zip(*(logits.split(batch.slice, dim=1) for logits in (self._logits(batch), *others)), strict=True)
            targets = batch.targets.split(batch.slice, dim=1)
            parts = [
                token_statistics(
                    logits_BTV.to(self.result_dtype), targets_BT, *(each.to(self.result_dtype) for each in rest)
                )
                for (logits_BTV, *rest), targets_BT in zip(slices, targets, strict=True)
            ]
            return torch.cat(parts, dim=2)

        fields = self._measured(tokens_BT, lengths_B, measure, first=first, measures=4 if observer is None else 5)
        given = (lengths_B.to(fields.device) - first).clamp(min=0)
        return TokenStatistics(
            fields[0], fields[1], fields[2], fields[3], given, None if observer is None else fields[4]
        )

    def _measured(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        measure: "Callable[[MicroBatch], Tensor]",
        *,
        first: int,
        measures: int,
    ) -> Tensor:
        """(S, B, T − first): `measure` gives S numbers for each token of a micro-batch that is scored."""
        refuse_training_mode(self.network)
        device, scored = self.network.device, tokens_BT.shape[1] - first
        tokens_BT, lengths_B = tokens_BT.to(device), lengths_B.to(device)
        if self.direction == RIGHT_TO_LEFT:
            tokens_BT = reversed_within(tokens_BT, lengths_B)
        if first == 0:
            tokens_BT, lengths_B, first = self._with_start(tokens_BT), lengths_B + 1, 1
        tokens_BT = self._checked(tokens_BT, lengths_B)
        value_SBT = torch.zeros(measures, len(tokens_BT), max(scored, 0), device=device, dtype=self.result_dtype)
        for rows, longest in self._micro_batches(lengths_B, first=first):
            batch = MicroBatch(tokens_BT[rows, :longest], lengths_B[rows], first, self.vocabulary_size)
            value_SBT[:, rows, : longest - first] = torch.where(batch.real, measure(batch), 0.0)
        if self.direction == RIGHT_TO_LEFT:
            value_SBT = reversed_within(value_SBT, (lengths_B - first).expand(measures, -1))
        return value_SBT

    def _check_observer(self, observer: "CausalLanguageModel") -> None:
        if (observer.vocabulary_size, observer.direction) != (self.vocabulary_size, self.direction):
            raise VocabularyMismatch(
                f"the observer knows {observer.vocabulary_size:,} tokens and reads {observer.direction}, the model "
                f"itself {self.vocabulary_size:,} and {self.direction}; take two models of one tokenizer"
            )

    @property
    def result_dtype(self) -> torch.dtype:
        """Of log-probabilities: the network's own, float32 at least."""
        return torch.promote_types(self.network.dtype, torch.float32)

    def _with_start(self, tokens_BT: Tensor) -> Tensor:
        if self.start_token_id is None:
            raise ModelError(
                "this model has no start token, so the first token of a sequence has no probability; "
                "score from the second token on (prefix_tokens=1), or give start_token_id"
            )
        return torch.cat([tokens_BT.new_full((tokens_BT.shape[0], 1), self.start_token_id), tokens_BT], dim=1)

    def _checked(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """The tokens with padding set to 0, if the network can read them at all."""
        self.check_length(int(lengths_B.max()) - 1 if len(lengths_B) else 0)
        real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        tokens_BT = tokens_BT.masked_fill(~real_BT, 0)
        self.check_ids(tokens_BT)
        return tokens_BT

    def check_length(self, longest: int) -> None:
        """`longest` is the number of tokens that are read; the last token that is scored need not be."""
        if self.max_length is not None and longest > self.max_length:
            raise ModelError(
                f"a sequence of {longest:,} tokens is longer than the {self.max_length:,} that the model holds; "
                "cut it into windows"
            )

    def check_ids(self, tokens: Tensor) -> None:
        unknown = tokens[(tokens < 0) | (tokens >= self.vocabulary_size)]
        if len(unknown):
            raise VocabularyMismatch(
                f"token id {int(unknown[0])} came but the model knows ids 0 to {self.vocabulary_size - 1}; "
                "encode the text with this model's own tokenizer"
            )

    def _micro_batches(self, lengths_B: Tensor, *, first: int) -> list[tuple[Tensor, int]]:
        """Rows that go through the network together and the length of the longest; rows with nothing to score are left
        out. Longest first, so that what does not fit into memory fails at once."""
        scored_B = lengths_B.where(lengths_B > first, 0)
        return length_batches(scored_B, tokens_at_once=tokens_at_once(self.network, LOGITS_PER_MICRO_BATCH))

    def _log_probs(self, batch: "MicroBatch") -> Tensor:
        """(1, B, T − first)."""
        logits_BTV = self._logits(batch)
        chosen_BT = logits_BTV.gather(2, batch.targets[..., None])[..., 0].to(self.result_dtype)
        return (chosen_BT - log_totals(logits_BTV, dtype=self.result_dtype))[None]

    def _logits(self, batch: "MicroBatch") -> Tensor:
        """(B, T − first, V): of every token that is scored."""
        inputs_BT, scored = batch.tokens_BT[:, :-1], batch.targets.shape[1]
        if why_not_packed(self.network) is None:
            logits_BTV = causal_logits(self.network, inputs_BT, keep=scored)
        else:
            logits_BTV = self._plain_logits(inputs_BT, batch.lengths_B, scored)
        if self.forbidden_token_ids:
            self._refuse_forbidden(batch.targets[batch.real])
            forbid_tokens(logits_BTV, self.forbidden_token_ids)
        return logits_BTV

    def _plain_logits(self, inputs_BT: Tensor, lengths_B: Tensor, scored: int) -> Tensor:
        positions_BT = torch.arange(inputs_BT.shape[1], device=inputs_BT.device).expand_as(inputs_BT)
        options = {
            "attention_mask": (positions_BT < lengths_B[:, None]).long(),
            "position_ids": positions_BT,
            "use_cache": False,
            "logits_to_keep": scored,
        }
        accepted = {name: value for name, value in options.items() if takes(self.network, name)}
        logits_BTV: Tensor = self.network(input_ids=inputs_BT, **accepted).logits[:, -scored:]
        return logits_BTV

    def _refuse_forbidden(self, scored: Tensor) -> None:
        refused = scored[torch.isin(scored, scored.new_tensor(self.forbidden_token_ids))]
        if len(refused):
            raise DataError(
                f"a text holds the special token {int(refused[0])}, which this model never writes; leave the token "
                "out, or measure the model that can write it (windows over packed documents)"
            )


def log_totals(logits_BTV: Tensor, *, dtype: torch.dtype) -> Tensor:
    """(B, T): log Σ_v exp(logit_v), a slice of positions at a time."""
    positions_a_slice = max(1, LOGITS_PER_REDUCTION // (logits_BTV.shape[0] * logits_BTV.shape[2]))
    slices = logits_BTV.split(positions_a_slice, dim=1)
    return torch.cat([part.to(dtype).logsumexp(-1) for part in slices], dim=1)


def reversed_within(values: Tensor, lengths: Tensor) -> Tensor:
    """The first `lengths` entries of the last axis in reverse order, the rest in place: (…, T), (…) -> (…, T)."""
    position = torch.arange(values.shape[-1], device=values.device).expand_as(values)
    source = torch.where(position < lengths[..., None], lengths[..., None] - 1 - position, position)
    return values.gather(-1, source)
