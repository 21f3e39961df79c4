"""Real text beside generated text: the same context with its real continuation and with some of its negatives.

    sequence 0        context + what follows it in the corpus
    sequence 1 … M    context + a continuation by the language model

Everything is in reading order and takes the same path from here on, so nothing but the words can give a label away.
Where continuations end at end-of-text (`stop_at_eos`), the real one does so too, under the same cap on its length.

Which part of a window is context and which is generated (Bakhtin et al. 2019 §3.2 and §4.2):

    suffix side   context = x_1 … x_c          target = x_{c+1} … x_T       written by a left-to-right model
    prefix side   context = x_{T−c+1} … x_T    target = x_1 … x_{T−c}       written by a right-to-left model

c is 120 or 140 of 160 with equal probability. It is a pure function of (seed, window number), so a window is cut in the
same place in every run, batch and process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.randomness import derive_seed, row_keys, row_uniforms

Side = Literal["suffix", "prefix"]
PAPER_CONTEXT_LENGTHS = (120, 140)


@dataclass(frozen=True)
class AffixSplit:
    """Windows cut in two: B contexts and B targets of their own lengths."""

    contexts: list[NDArray[np.int64]]
    targets: list[NDArray[np.int64]]


def cut_lengths(
    indices: NDArray[np.int64], *, seed: int, choices: Sequence[int] = PAPER_CONTEXT_LENGTHS
) -> NDArray[np.int64]:
    """(B,): the context length of each window, drawn uniformly from `choices`."""
    picks_B = (_uniforms(indices, seed=derive_seed(seed, "context length")) * len(choices)).long()
    lengths_B: NDArray[np.int64] = np.asarray(choices, dtype=np.int64)[picks_B.numpy()]
    return lengths_B


def split_affix(windows_BT: NDArray[np.int64], cut_B: NDArray[np.int64], *, side: Side) -> AffixSplit:
    """Cut each window into `cut_B` tokens of context and the rest, on the given side."""
    length = windows_BT.shape[1]
    if cut_B.size and (cut_B.min() < 0 or cut_B.max() > length):
        raise ValueError(f"context lengths must lie in [0, {length}], came {cut_B.min()} to {cut_B.max()}")
    if side == "suffix":
        parts = [(row[:cut], row[cut:]) for row, cut in zip(windows_BT, cut_B, strict=True)]
    else:
        parts = [(row[length - cut :], row[: length - cut]) for row, cut in zip(windows_BT, cut_B, strict=True)]
    return AffixSplit(contexts=[context for context, _ in parts], targets=[target for _, target in parts])


def join_affix(context: NDArray[np.int64], generated: NDArray[np.int64], *, side: Side) -> NDArray[np.int64]:
    """The sequence in reading order: the inverse of `split_affix` for one window."""
    return np.concatenate([context, generated] if side == "suffix" else [generated, context])


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


class ContrastUnion:
    """Several contrasts as one: their contexts counted through, one source after the other.

    An epoch over the union visits every context once in an order of its own (`training.energy_task`), so that each
    source has its share of every batch in proportion to its contexts, as a pure function of (seed, step). Sources may
    differ in generator, corpus, side (a left-to-right model's suffixes beside a right-to-left one's prefixes, Bakhtin
    et al. 2019 §3.2), lengths and number of negatives.
    """

    def __init__(self, parts: Sequence[Contrast]) -> None:
        self.parts = tuple(parts)
        self._begins = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def k(self) -> int:
        """Negatives that every context has."""
        return min(part.k for part in self.parts)

    def counts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B,) how many negatives each context has."""
        return np.array([part.k for part in self.parts], dtype=np.int64)[self._part_of(contexts)]

    def sequences(self, contexts: NDArray[np.int64], copies_BM: NDArray[np.int64]) -> list[list[int]]:
        """B·(1 + M) sequences: of each context the real one, then those with the negatives `copies_BM`."""
        each = 1 + copies_BM.shape[1]
        part_B = self._part_of(contexts)
        result: list[list[int]] = [[]] * (each * len(contexts))
        for number in np.unique(part_B):
            members = np.flatnonzero(part_B == number)
            sequences = self.parts[number].sequences(contexts[members] - self._begins[number], copies_BM[members])
            for index, row in enumerate(members.tolist()):
                result[row * each : (row + 1) * each] = sequences[index * each : (index + 1) * each]
        return result

    def _part_of(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._begins, contexts, side="right") - 1


def until_end(target: NDArray[np.int64], end_token_id: int, *, side: Side) -> NDArray[np.int64]:
    """What a writer that stops at end-of-text would have written of `target`; the end-of-text token is kept."""
    ends = np.flatnonzero(target == end_token_id)
    if not ends.size:
        return target
    return target[: ends[0] + 1] if side == "suffix" else target[ends[-1] :]


def by_window(windows_N: NDArray[np.int64], *, fraction: float, purpose: str) -> NDArray[np.bool_]:
    """(N,): about `fraction` of the windows, by a hash of their numbers: the same in every run and folder."""
    return (_uniforms(windows_N, seed=derive_seed(0, purpose)) < fraction).numpy()


def _uniforms(windows_N: NDArray[np.int64], *, seed: int) -> Tensor:
    """(N,) in [0, 1): a pure function of seed and window number."""
    groups_N = torch.from_numpy(np.ascontiguousarray(windows_N, dtype=np.int64))
    return row_uniforms(row_keys(seed, groups_N, torch.zeros_like(groups_N)), step=0)


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(S, T) int64 padded with 0 on the right, and (S,) lengths."""
    rows = [torch.as_tensor(sequence, dtype=torch.int64) for sequence in sequences]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])
