"""One `seed` in, named streams out. Nothing else reads or sets a global seed.

`streams`      a `torch.Generator` per named purpose
`counter`      random numbers of a row as a pure function of (seed, row, step), whatever the batch
`permutation`  a shuffle of 0 … n−1 that is computed, not stored
"""

from energylm.randomness.counter import row_keys, row_uniforms, seed_tensor
from energylm.randomness.permutation import epoch_order, shuffled
from energylm.randomness.streams import derive_seed, generator

__all__ = ["derive_seed", "epoch_order", "generator", "row_keys", "row_uniforms", "seed_tensor", "shuffled"]
