"""Several contrasts as one: their contexts counted through, one source after the other.

An epoch over the union visits every context once in an order of its own (`training.energy_task`), so that each source
has its share of every batch in proportion to its contexts, as a pure function of (seed, step). Sources may differ in
generator, corpus, side (a left-to-right model's suffixes beside a right-to-left one's prefixes, Bakhtin et al. 2019
§3.2), lengths and number of negatives.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energylm.data.negatives_contrast import Contrast


class ContrastUnion:
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
            found = self.parts[number].sequences(contexts[members] - self._begins[number], copies_BM[members])
            for place, row in enumerate(members.tolist()):
                result[row * each : (row + 1) * each] = found[place * each : (place + 1) * each]
        return result

    def _part_of(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._begins, contexts, side="right") - 1
