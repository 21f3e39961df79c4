"""What the rooms promise each other. A part that satisfies a Protocol can take the place of any other that does.

Axis letters everywhere: B sequences (or contexts), T positions, V vocabulary, K negatives or candidates, C chains,
N samples (continuations of one context), R = B·N rows, D width. Logarithms are natural. Lower energy = likelier.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Decoder(Protocol):
    """Steps many continuations of a few contexts at once; what a draw loop needs of a language model.

    Row r continues context r // copies. The state is opaque and belongs to the decoder; `step` may change it in place.
    """

    @property
    def vocabulary_size(self) -> int: ...

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Read each context once: an opaque prefix, and the logits (B, V) of the first new token of each context."""
        ...

    def fork(self, prefix: Any, *, copies: int, max_new_tokens: int) -> Any:
        """A state of B·copies rows that all share `prefix`; it may be forked again for the next micro-batch."""
        ...

    def step(self, state: Any, tokens_R: Tensor) -> Tensor:
        """Append one token to every row; logits (R, V) of the next. May be called max_new_tokens − 1 times."""
        ...

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        """Memory that one more row costs, for choosing micro-batches from a budget."""
        ...


@runtime_checkable
class ForkingDecoder(Decoder, Protocol):
    """A decoder whose rows can go on from one another: what a population of continuations needs to be resampled."""

    def select(self, state: Any, rows_R: Tensor) -> None:
        """From here on row r continues what row rows_R[r] has written, a row of the same context. In place."""
        ...


@runtime_checkable
class CausalModel(Protocol):
    """Normalised: P(x | c) = Π_t P(x_t | c, x_<t). Works on token ids; folders and text are `bundles/`' concern."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a sequence, or None for languages of fixed length."""
        ...

    def token_log_probs(self, tokens_BT: Tensor, lengths_B: Tensor, *, first: int = 0) -> Tensor:
        """(B, T − first): log P(x_t | x_<t) for t ≥ first, 0 past the end of a sequence. Right-padded input.

        `first = 0` also scores the first token, which needs a start distribution (a BOS token, or a table).
        """
        ...

    def decoder(self) -> Decoder: ...


@runtime_checkable
class SequenceEnergy(Protocol):
    """Unnormalised: one number per sequence, lower = likelier."""

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """(B,) energies of right-padded sequences."""
        ...


@runtime_checkable
class ContinuationEnergy(SequenceEnergy, Protocol):
    """An energy that can read a context once for all its continuations."""

    def continuation_energies(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> Tensor:
        """(B, N): `energies` of each context joined with each of its N right-padded continuations."""
        ...


@runtime_checkable
class MaskedModel(Protocol):
    """Conditionals of hidden tokens given those around them; they need not belong to any joint distribution.

    Sequences hold text only: what frames them ([CLS] … [SEP]) is the model's own business.
    """

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def mask_token_id(self) -> int: ...

    def masked_logits(
        self, tokens_RT: Tensor, lengths_R: Tensor, hidden_RT: Tensor, *, source_R: Tensor | None = None
    ) -> Tensor:
        """(N, V) logits at the N positions that `hidden_RT` marks, row by row; all positions that are marked in a row
        are hidden from the model together. `source_R` says which of its sources a conditional model reads for each
        row; models without sources ignore it."""
        ...


@runtime_checkable
class Choices(Protocol):
    """Where a sampler's decisions come from: drawn (`samplers.choices.RowChoices`) or enumerated (`testing`), so that
    the very code that runs in production can be proved on an enumerable language.

    Every call decides for all R rows. What a row is offered may depend on its own past only, never on other rows.
    """

    def categorical(self, logits: Tensor) -> Tensor:
        """(R, …, V) → (R, …) int64, by softmax of the last axis; −inf is never chosen. Need not be normalised."""
        ...

    def accept(self, log_probability_R: Tensor) -> Tensor:
        """(R,) bool, each true with probability min(1, exp(log_probability))."""
        ...


State = tuple[Tensor, ...]  # each (B, K, …): what an element of a beam carries; rows of K may be picked or mixed


@runtime_checkable
class Stepper(Protocol):
    """B sources, read; their outputs are written one symbol at a time: what a search needs of a sequence model.

    Inputs are embeddings, not symbols, so that a search may feed a mixture of symbols back. Scores are raw: whether
    they are normalised at each step is the search's choice. K may change from step to step.
    """

    embedding_VE: Tensor  # what stands for each output symbol when it is fed back

    def start(self) -> tuple[State, Tensor]:
        """The state before anything is written, (B, 1, …), and the first input (B, 1, E)."""
        ...

    def step(self, state: State, inputs_BKE: Tensor, *, position: int) -> tuple[State, Tensor]:
        """Read one input at each element: the new state, and the raw scores (B, K, V) of symbol `position`."""
        ...
