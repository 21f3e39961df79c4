"""A language model given by a table: P(x_t | x_<t) for every history over a tiny vocabulary, in float64.

    P(x) = Π_t P(x_t | x_<t)            row history_index(x_<t) of the table holds log P(· | x_<t)

Use it     in place of a network wherever `contracts.CausalModel` is asked for, to compare with exact sums.
Relations  a context is a history, so it may be empty; `tabular_scores` has the unnormalised siblings; `exact` sums all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from energylm.contracts import Decoder
from energylm.randomness import derive_seed
from energylm.testing.enumeration import all_histories, history_count, history_index


class TabularLanguageModel:
    """Sequences of at most `length` tokens. With `eos_token_id`, EOS follows EOS: such rows are not read."""

    def __init__(self, log_probs_HV: Tensor, *, length: int, eos_token_id: int | None = None) -> None:
        histories, vocabulary_size = log_probs_HV.shape
        if length < 1 or histories != history_count(vocabulary_size, length - 1):
            raise ValueError(
                f"a table for {length} tokens of a vocabulary of {vocabulary_size} has "
                f"{history_count(vocabulary_size, length - 1)} histories, came {histories}"
            )
        table_HV = log_probs_HV.double().clone()
        if eos_token_id is not None:
            ended = [eos_token_id in history for history in all_histories(vocabulary_size, length - 1)]
            table_HV[torch.tensor(ended)] = float("-inf")
            table_HV[torch.tensor(ended), eos_token_id] = 0.0
        if not torch.allclose(table_HV.exp().sum(-1), torch.ones(histories, dtype=torch.float64), rtol=0, atol=1e-9):
            raise ValueError("every row of the table must be a normalised log-distribution")
        self.log_probs_HV = table_HV
        self.length = length
        self._eos_token_id = eos_token_id

    @classmethod
    def random(
        cls,
        vocabulary_size: int,
        length: int,
        *,
        seed: int,
        concentration: float = 1.0,
        eos_token_id: int | None = None,
    ) -> Self:
        """Every row from a symmetric Dirichlet distribution: peaked for small `concentration`, flat for large."""
        generator = np.random.default_rng(derive_seed(seed, "tabular language model"))
        alpha = np.full(vocabulary_size, concentration)
        probabilities = generator.dirichlet(alpha, size=history_count(vocabulary_size, length - 1))
        return cls(torch.from_numpy(probabilities).log(), length=length, eos_token_id=eos_token_id)

    @classmethod
    def from_function(
        cls,
        next_probabilities: Callable[[tuple[int, ...]], Sequence[float]],
        *,
        vocabulary_size: int,
        length: int,
        eos_token_id: int | None = None,
    ) -> Self:
        """The table of a function of the history, e.g. `lambda history: [0.9, 0.1] if history else [0.5, 0.5]`."""
        rows = [list(next_probabilities(history)) for history in all_histories(vocabulary_size, length - 1)]
        return cls(torch.tensor(rows, dtype=torch.float64).log(), length=length, eos_token_id=eos_token_id)

    @property
    def vocabulary_size(self) -> int:
        return self.log_probs_HV.shape[1]

    @property
    def eos_token_id(self) -> int | None:
        return self._eos_token_id

    def next_log_probs(self, history: Sequence[int]) -> Tensor:
        """(V,) log P(· | history)."""
        tokens_1T = torch.tensor([list(history)], dtype=torch.int64)
        self._check_fits(tokens_1T.shape[1] + 1)
        return self.log_probs_HV[history_index(tokens_1T, torch.tensor([tokens_1T.shape[1]]), self.vocabulary_size)[0]]

    def token_log_probs(self, tokens_BT: Tensor, lengths_B: Tensor, *, first: int = 0) -> Tensor:
        longest = int(lengths_B.max()) if len(lengths_B) else 0
        self._check_fits(longest)
        result_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
        for position in range(first, longest):
            inside_B = position < lengths_B
            tokens_AT = tokens_BT[inside_B]
            history_A = history_index(tokens_AT, torch.full((len(tokens_AT),), position), self.vocabulary_size)
            result_BT[inside_B, position] = self.log_probs_HV[history_A, tokens_AT[:, position]]
        return result_BT[:, first:]

    def decoder(self) -> Decoder:
        return TabularDecoder(self)

    def _check_fits(self, tokens: int) -> None:
        if tokens > self.length:
            raise ValueError(f"the table knows sequences of at most {self.length} tokens, asked for {tokens}")


@dataclass
class HistoryRows:
    """Where each row stands in the tree of histories."""

    history: Tensor  # (R,) the number of its history
    tokens: Tensor  # (R,) how many tokens that has


class TabularDecoder:
    """`contracts.ForkingDecoder` over the table. Unequal and empty contexts may share a batch."""

    def __init__(self, model: TabularLanguageModel) -> None:
        self._model = model

    @property
    def vocabulary_size(self) -> int:
        return self._model.vocabulary_size

    def prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[HistoryRows, Tensor]:
        lengths_B = torch.tensor([len(context) for context in contexts], dtype=torch.int64)
        tokens_BT = torch.zeros(len(contexts), int(lengths_B.max()), dtype=torch.int64)
        for row, context in enumerate(contexts):
            tokens_BT[row, : len(context)] = torch.tensor(list(context), dtype=torch.int64)
        prefix = HistoryRows(history_index(tokens_BT, lengths_B, self.vocabulary_size), lengths_B)
        return prefix, self._logits(prefix)

    def fork(self, prefix: HistoryRows, *, copies: int, max_new_tokens: int) -> HistoryRows:
        self._model._check_fits(int(prefix.tokens.max()) + max_new_tokens)
        return HistoryRows(prefix.history.repeat_interleave(copies), prefix.tokens.repeat_interleave(copies))

    def step(self, state: HistoryRows, tokens_R: Tensor) -> Tensor:
        state.history = self.vocabulary_size * state.history + tokens_R + 1
        state.tokens = state.tokens + 1
        return self._logits(state)

    def select(self, state: HistoryRows, rows_R: Tensor) -> None:
        state.history, state.tokens = state.history[rows_R], state.tokens[rows_R]

    def bytes_per_row(self, *, context_tokens: int, max_new_tokens: int) -> int:
        return 8 * (2 + max_new_tokens + self.vocabulary_size)

    def _logits(self, rows: HistoryRows) -> Tensor:
        self._model._check_fits(int(rows.tokens.max()) + 1)
        return self._model.log_probs_HV[rows.history]
