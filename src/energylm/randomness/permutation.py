"""A shuffle that is computed, not stored: position i of a seeded permutation of 0 … n−1 in O(1) time and no memory.

A balanced Feistel network permutes [0, 4^h) with 4^h ≥ n; an image ≥ n is sent through again until it falls below n
("cycle walking": the restriction of a permutation to its cycles inside [0, n) is a permutation of [0, n)).
The data order of training is `shuffled(step·batch + …, n, seed=(seed, epoch))`: resuming seeks at once.
"""

import numpy as np
from numpy.typing import NDArray

from energylm.randomness.streams import derive_seed

# Small n set both: with 4 rounds some orders of 4 items come a fifth too often, and a network on 2-bit halves
# makes even permutations only, which cycle walking carries over to orders of 5 and 6 items.
_ROUNDS = 6
_MIN_HALF_BITS = 3
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def shuffled(positions: NDArray[np.int64], size: int, *, seed: int) -> NDArray[np.int64]:
    """Where `positions` (each in [0, size)) go under the permutation of [0, size) named by `seed`."""
    if size < 1 or (positions.size and (positions.min() < 0 or positions.max() >= size)):
        raise ValueError(f"positions must lie in [0, {size})")
    half_bits = max(_MIN_HALF_BITS, ((size - 1).bit_length() + 1) // 2)
    keys = [np.uint64(derive_seed(seed, "feistel", round_)) for round_ in range(_ROUNDS)]
    image = _feistel(positions.astype(np.uint64), half_bits, keys)
    outside = np.flatnonzero(image >= size)
    while outside.size:
        image[outside] = _feistel(image[outside], half_bits, keys)
        outside = outside[image[outside] >= size]
    return image.astype(np.int64)


def epoch_order(positions: NDArray[np.int64], size: int, *, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The epoch, and the item of 0 … size−1, at each position of an endless sequence of epochs, each shuffled anew."""
    epochs, within = np.divmod(positions, size)
    items = np.empty_like(positions)
    for epoch in np.unique(epochs):
        members = epochs == epoch
        items[members] = shuffled(within[members], size, seed=derive_seed(seed, "epoch", int(epoch)))
    return epochs, items


def _feistel(x: NDArray[np.uint64], half_bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = x >> bits, x & mask
    for key in keys:
        mixed = right ^ key
        mixed ^= mixed >> np.uint64(30)
        mixed *= _M1
        mixed ^= mixed >> np.uint64(27)
        mixed *= _M2
        left, right = right, left ^ (mixed >> np.uint64(64 - half_bits))
    return (left << bits) | right
