"""Real text beside generated text: the same context with its real continuation and with some of its negatives.

    sequence 0        context + what follows it in the corpus
    sequence 1 … M    context + a continuation by the language model

Everything is in reading order and takes the same path from here on, so nothing but the words can give a label away.
Where continuations end at end-of-text (`stop_at_eos`), the real one does so too, under the same cap on its length.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.data.affix import Side, join_affix, split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.randomness import derive_seed, row_keys, row_uniforms


class Contrast:
    """Some `rows` of a negatives folder (all, if none are given) with the real texts of its corpus."""

    def __init__(self, negatives: Negatives, corpus: Corpus, *, rows: NDArray[np.int64] | None = None) -> None:
        negatives.check(corpus=corpus)
        self._negatives, self._windows = negatives, negatives.corpus_windows(corpus)
        self.rows = np.arange(len(negatives), dtype=np.int64) if rows is None else rows
        self._end_token_id = corpus.end_token_id if negatives.config.stop_at_eos else None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def k(self) -> int:
        return self._negatives.k

    def counts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,) how many negatives each context has."""
        return np.full(len(contexts), self.k, dtype=np.int64)

    def sequences(self, contexts: NDArray[np.int64], copies_BM: NDArray[np.int64]) -> list[list[int]]:
        """B·(1 + M) sequences: of each context the real one, then those with the negatives `copies_BM`."""
        side: Side = self._negatives.config.side
        rows = self._negatives.rows(self.rows[contexts])
        halves = split_affix(self._windows.gather(rows.window_B), rows.context_length_B, side=side)
        result: list[list[int]] = []
        for row, (context, target) in enumerate(zip(halves.contexts, halves.targets, strict=True)):
            if self._end_token_id is not None:
                target = until_end(target, self._end_token_id, side=side)
            result.append(join_affix(context, target, side=side).tolist())
            for copy in copies_BM[row]:
                generated = rows.tokens_BKT[row, copy, : rows.length_BK[row, copy]]
                result.append(join_affix(context, generated, side=side).tolist())
        return result


def until_end(target: NDArray[np.int64], end_token_id: int, *, side: Side) -> NDArray[np.int64]:
    """What a writer that stops at end-of-text would have written of `target`; the end-of-text token is kept."""
    ends = np.flatnonzero(target == end_token_id)
    if not ends.size:
        return target
    return target[: ends[0] + 1] if side == "suffix" else target[ends[-1] :]


def by_window(windows_N: NDArray[np.int64], *, fraction: float, purpose: str) -> NDArray[np.bool_]:
    """(N,): about `fraction` of the windows, by a hash of their numbers: the same in every run and folder."""
    groups_N = torch.from_numpy(np.ascontiguousarray(windows_N, dtype=np.int64))
    keys_N = row_keys(derive_seed(0, purpose), groups_N, torch.zeros_like(groups_N))
    return (row_uniforms(keys_N, step=0) < fraction).numpy()


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(S, T) int64 padded with 0 on the right, and (S,) lengths."""
    rows = [torch.as_tensor(sequence, dtype=torch.int64) for sequence in sequences]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])
