"""Examples of a task in memory: one text or two with a label; random parts that never change; the order of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from energylm.randomness import derive_seed, epoch_order, shuffled

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """`label` is the number of a class, or a score where the task is a regression."""

    first: str
    second: str | None
    label: float


def random_part(items: Sequence[Item], count: int | None, *, purpose: str) -> list[Item]:
    """`count` of the items in their order, chosen by their number and `purpose` alone; all where `count` is None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[place] for place in sorted(_order(len(items), purpose)[:count])]


def held_out(items: Sequence[Item], share: float, *, purpose: str) -> tuple[list[Item], list[Item]]:
    """(the rest, a random `share` of the items, at least one); two parts that never change."""
    order = _order(len(items), purpose)
    chosen = set(order[: max(1, round(share * len(items)))])
    rest = [item for place, item in enumerate(items) if place not in chosen]
    return rest, [item for place, item in enumerate(items) if place in chosen]


def _order(size: int, purpose: str) -> list[int]:
    order: list[int] = shuffled(np.arange(size, dtype=np.int64), size, seed=derive_seed(0, purpose)).tolist()
    return order


class ExampleBatches:
    """Which examples make up the batch of update 1, 2, …: each epoch in a random order of its own, those of a batch in
    order of their length, so that micro-batches waste little on padding. A pure function of (seed, update)."""

    def __init__(self, lengths: NDArray[np.int64], *, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = lengths, batch, derive_seed(seed, "example order")

    def rows(self, step: int) -> NDArray[np.int64]:
        """(batch,) the examples of update `step`."""
        positions = np.arange((step - 1) * self._batch, step * self._batch, dtype=np.int64)
        _, examples = epoch_order(positions, len(self._lengths), seed=self._seed)
        return examples[np.argsort(self._lengths[examples], kind="stable")]
