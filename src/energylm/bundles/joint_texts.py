"""Texts as a joint model takes them: strings or ids, cut into what is given and what follows.

A language model with a tokenizer (`bundles.language_model`) takes both; any other `contracts.CausalModel` takes ids
only. The start token that stands before a string is read by the language model alone: an energy judges the text. Chats
keep their messages, for energies that judge an answer to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from energylm import contracts
from energylm.bundles.chat import Message, checked_messages, spoken_text
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.text_codec import Text, Texts, as_list
from energylm.errors import DataError, ModelError


@dataclass(frozen=True)
class Context:
    """What stands before a continuation: ids as the language model reads them, and as the energy does."""

    lm: list[int]
    energy: list[int]
    messages: tuple[Message, ...] = ()  # of the chat that the ids stand for
    written: int = 0  # tokens at the end that belong to the completion already

    def extended(self, tokens: Sequence[int]) -> "Context":
        """The same after `tokens` more of the completion."""
        lm, energy = [*self.lm, *tokens], [*self.energy, *tokens]
        return replace(self, lm=lm, energy=energy, written=self.written + len(tokens))

    def last(self, tokens: int | None) -> "Context":
        """At most so many tokens from the end; None = all."""
        if tokens is None:
            return self
        return replace(self, lm=self.lm[-tokens:], energy=self.energy[-tokens:], written=min(self.written, tokens))

    def split(self) -> tuple["Context", list[int]]:
        """What was given, and what was written after it."""
        lm, energy = (ids[: len(ids) - self.written] for ids in (self.lm, self.energy))
        return replace(self, lm=lm, energy=energy, written=0), self.lm[len(lm) :]


@dataclass(frozen=True)
class CutText:
    """A text to measure: its context, the tokens that are scored, and their bytes where there is a tokenizer."""

    context: Context
    continuation: list[int]
    bytes: int | None


def longest_read(texts: Sequence[CutText], *, max_new_tokens: int | None) -> int:
    """How many tokens an energy reads at most where these texts are measured, samples in their place included."""
    return max((len(text.context.energy) + (max_new_tokens or len(text.continuation)) for text in texts), default=0)


class JointTexts:
    def __init__(self, lm: contracts.CausalModel) -> None:
        self._lm = lm
        self._codec = lm.codec if isinstance(lm, LanguageModel) else None

    def contexts(self, texts: Texts) -> list[Context]:
        return [self._context(text, self._ids(text)) for text in as_list(texts)]

    def cut(self, texts: Texts, *, prefix_tokens: int, max_new_tokens: int | None) -> list[CutText]:
        """With `max_new_tokens` texts vary in length: each ends with EOS, which is scored, or is cut at that many.
        There a text ends with its first EOS: nothing has a probability after it, so a text that goes on is refused."""
        return [
            self._cut(number, text, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens)
            for number, text in enumerate(as_list(texts), start=1)
        ]

    def chat(self, messages: Sequence[Message]) -> Context:
        """What stands before the answer to a chat: the ids of the model's template, and the messages themselves."""
        if not isinstance(self._lm, LanguageModel):
            raise ModelError("this language model has no tokenizer, so it reads no messages; pass token ids instead")
        ids = self._lm.chat_ids(messages)
        return Context(ids, ids, checked_messages(messages))

    def prompt_text(self, context: Context) -> str:
        """What stands before a continuation, as an energy that judges text reads it; of a chat, what was said."""
        if context.messages:
            return spoken_text(context.messages)
        return " ".join(map(str, context.energy)) if self._codec is None else self._codec.decode(context.energy)

    def new_texts(self, context: Context, sequences: Sequence[list[int]]) -> list[str]:
        """What each sequence adds to the context; a model without a tokenizer writes ids."""
        if self._codec is None:
            return [" ".join(map(str, sequence)) for sequence in sequences]
        return self._codec.new_texts(context.lm, sequences)

    def new_text(self, context: Context, new: list[int]) -> str:
        (text,) = self.new_texts(context, [new])
        return text

    def convention(self, texts: Texts, *, prefix_tokens: int, max_new_tokens: int | None) -> str:
        """What a score counts, in words."""
        varying = "" if max_new_tokens is None else f", texts cut at {max_new_tokens} tokens"
        if isinstance(self._lm, LanguageModel):
            of_ids = not any(isinstance(text, str) for text in as_list(texts))
            eos = max_new_tokens is not None
            return self._lm.convention(prefix_tokens=prefix_tokens, eos=eos, of_ids=of_ids) + varying
        span = f"all tokens but the first {prefix_tokens}, which are given" if prefix_tokens else "all tokens"
        return f"nats per token of {self._lm.vocabulary_size:,} ids, {span}{varying}; standard error over sequences"

    def _ids(self, text: Text) -> list[int]:
        if self._codec is not None:
            return self._codec.ids(text)
        if isinstance(text, str):
            raise DataError("a string came, but this language model has no tokenizer; pass lists of token ids")
        return list(text)

    def _context(self, text: Text, ids: list[int]) -> Context:
        """The context of these ids, read as the beginning of a document where the text is a string."""
        if self._codec is None:
            return Context(ids, ids)
        return Context(self._codec.started(ids) if isinstance(text, str) or not ids else ids, ids)

    def _cut(self, number: int, text: Text, *, prefix_tokens: int, max_new_tokens: int | None) -> CutText:
        ids = whole = self._ids(text)
        if max_new_tokens is not None:
            if self._lm.eos_token_id is None:
                raise ModelError("this model has no end-of-sequence token to count; leave max_new_tokens out")
            ended = ids if ids[-1:] == [self._lm.eos_token_id] else [*ids, self._lm.eos_token_id]
            whole = ended[: prefix_tokens + max_new_tokens]
            self._refuse_inner_end(number, whole, first=prefix_tokens)
        if len(whole) <= prefix_tokens:
            raise DataError(
                f"text {number} has {len(whole)} tokens, none to score after a prefix of {prefix_tokens}; "
                "leave it out, or shorten the prefix"
            )
        size = None
        if self._codec is not None:
            is_cut = len(whole) < len(ids)
            size = self._codec.scored_bytes(whole if is_cut else text, whole, prefix_tokens=prefix_tokens)
        return CutText(self._context(text, whole[:prefix_tokens]), whole[prefix_tokens:], size)

    def _refuse_inner_end(self, number: int, ids: list[int], *, first: int) -> None:
        """In the scored part; what is given may hold the ends of other documents."""
        inner = next((index for index in range(first, len(ids) - 1) if ids[index] == self._lm.eos_token_id), None)
        if inner is not None:
            raise DataError(
                f"text {number} has the end-of-sequence token {self._lm.eos_token_id} at position {inner + 1} of "
                f"{len(ids)}, after which nothing has a probability; cut the text there, or leave max_new_tokens out "
                "to measure texts of a fixed length"
            )


def lm_token_log_probs(lm: contracts.CausalModel, texts: Sequence[CutText]) -> Tensor:
    """(B, T) float64: log P_LM of each scored token, 0 past the end. The contexts of one call are equally long."""
    given = len(texts[0].context.lm)
    rows = [torch.tensor([*text.context.lm, *text.continuation]) for text in texts]
    tokens_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths_B = torch.tensor([len(row) for row in rows])
    with torch.no_grad():
        return lm.token_log_probs(tokens_BT, lengths_B, first=given).double().cpu()
