"""One `seed` in, named streams out. Nothing else reads or sets a global seed.

`streams`      a `torch.Generator` per named purpose
`counter`      random numbers of a row as a pure function of (seed, row, step), whatever the batch
`permutation`  a shuffle of 0 … n−1 that is computed, not stored

`counter` brings torch and waits until it is used: a study or a data set is shuffled without it.
"""

from typing import TYPE_CHECKING, Any

from energylm.randomness.permutation import epoch_order, shuffled
from energylm.randomness.streams import derive_seed, generator

if TYPE_CHECKING:
    from energylm.randomness.counter import row_keys, row_uniforms, seed_tensor

__all__ = ["derive_seed", "epoch_order", "generator", "row_keys", "row_uniforms", "seed_tensor", "shuffled"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from energylm.randomness import counter

        return getattr(counter, name)
    raise AttributeError(f"module 'energylm.randomness' has no attribute {name!r}")
