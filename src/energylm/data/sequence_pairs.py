"""Source and target sequences: parallel text, pairs of unequal lengths, and batches that waste little on padding.

Parallel text is two plain files, line n of one the translation of line n of the other.

An epoch's batches hold sequences of about equal length: they are sorted by length with a little noise, cut into
batches, and the batches are shuffled. All of it is a pure function of (seed, step), so resuming seeks at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from energylm.data.examples import padded
from energylm.data.text_files import decoded_lines
from energylm.errors import ConfigError, DataError
from energylm.randomness import derive_seed, shuffled

NOISE = 0.1  # of a length, so that a sequence meets others in every epoch


@dataclass(frozen=True, slots=True)
class TranslationPair:
    source: str
    target: str


def read_parallel(source_path: Path | str, target_path: Path | str) -> Iterator[TranslationPair]:
    """Pairs in order. Files of unequal length are not parallel: an error at the line where one ends."""
    lines = zip_longest(decoded_lines(Path(source_path)), decoded_lines(Path(target_path)))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            shorter, longer = (source_path, target_path) if source is None else (target_path, source_path)
            raise DataError(
                f"{shorter} ends after {number - 1} lines but {longer} goes on with line {number}; parallel files "
                "need as many lines each"
            )
        yield TranslationPair(source[1], target[1])


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
            "source_BS": padded([self.sources[i] for i in indices]),
            "source_lengths_B": self.source_lengths[indices],
            "target_BT": padded([self.targets[i] for i in indices], filler=ignored),
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
        full = mixed[: self.batches_an_epoch * self._batch]
        noise = np.random.default_rng(seed).uniform(1 - NOISE, 1 + NOISE, len(full))
        by_length = full[np.argsort(self._lengths[full] * noise, kind="stable")].reshape(-1, self._batch)
        batches = np.arange(self.batches_an_epoch, dtype=np.int64)
        return by_length[shuffled(batches, len(batches), seed=derive_seed(seed, "batches"))]
