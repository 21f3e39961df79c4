"""Source and target sequences of unequal lengths, and batches of them that waste little on padding.

An epoch's batches hold sequences of about equal length: they are sorted by length with a little noise, cut into
batches, and the batches are shuffled. All of it is a pure function of (seed, step), so resuming seeks at once.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from energylm.errors import ConfigError
from energylm.randomness import derive_seed, shuffled

NOISE = 0.1  # of a length, so that a sequence meets others in every epoch


class SequencePairs:
    """N pairs in memory. `ignored` stands past the end of a target, 0 past the end of a source."""

    def __init__(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        self.sources = [np.asarray(each, dtype=np.int64) for each in sources]
        self.targets = [np.asarray(each, dtype=np.int64) for each in targets]
        self.source_lengths = np.array([len(each) for each in self.sources], dtype=np.int64)
        self.target_lengths = np.array([len(each) for each in self.targets], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sources)

    def gather(self, indices: NDArray[np.int64], *, ignored: int) -> dict[str, NDArray[np.int64]]:
        """Right-padded arrays of the pairs `indices`, with their lengths."""
        return {
            "source_BS": _padded([self.sources[i] for i in indices], 0),
            "source_lengths_B": self.source_lengths[indices],
            "target_BT": _padded([self.targets[i] for i in indices], ignored),
            "target_lengths_B": self.target_lengths[indices],
        }


class LengthBatches:
    """Which pairs make up the batch of update 1, 2, …; the few that do not fill a batch change from epoch to epoch."""

    def __init__(self, lengths: NDArray[np.int64], *, batch: int, seed: int) -> None:
        if len(lengths) < batch:
            raise ConfigError(f"training.global_batch is {batch} but there are {len(lengths)} sequences; lower it")
        self._lengths, self._batch, self._seed = lengths, batch, seed
        self.batches_an_epoch = len(lengths) // batch
        self._order = lru_cache(maxsize=2)(self._order_of_epoch)

    def epoch(self, step: int) -> int:
        return (step - 1) // self.batches_an_epoch

    def rows(self, step: int) -> NDArray[np.int64]:
        """(batch,) the pairs of update `step`."""
        rows_B: NDArray[np.int64] = self._order(self.epoch(step))[(step - 1) % self.batches_an_epoch]
        return rows_B

    def _order_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        seed = derive_seed(self._seed, "pair order", epoch)
        mixed = shuffled(np.arange(len(self._lengths), dtype=np.int64), len(self._lengths), seed=seed)
        kept = mixed[: self.batches_an_epoch * self._batch]
        noise = np.random.default_rng(seed).uniform(1 - NOISE, 1 + NOISE, len(kept))
        by_length = kept[np.argsort(self._lengths[kept] * noise, kind="stable")].reshape(-1, self._batch)
        places = np.arange(self.batches_an_epoch, dtype=np.int64)
        return by_length[shuffled(places, len(places), seed=derive_seed(seed, "batches"))]


def _padded(rows: list[NDArray[np.int64]], filler: int) -> NDArray[np.int64]:
    padded = np.full((len(rows), max(map(len, rows), default=0)), filler, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded
