"""One seed in, named streams out. Nothing else reads or sets a global seed.

    derive_seed, generator, seeded    a stream for each named purpose: `generator(seed, "dropout", step)`
    row_keys, row_uniforms            numbers of a row as a pure function of (seed, row, step), whatever the batch
    shuffled, epoch_order             a shuffle of 0 … n−1 that is computed, not stored

The seed of a stream is a SHA-256 of the master seed and the names, so it is the same on every machine and version.

Rows:     key_r  = mix(mix(seed + a·group_r) + b·member_r)            u_r(step) = mix(key_r + c·step) / 2⁵³  in [0, 1)

`mix` is the 64-bit finaliser of SplitMix64 (Steele, Lea & Flood 2014). A generator a row would cost a Python object and
a state a row; a shared generator would tie a row's numbers to its batch. Here a row keeps its numbers in any batch.

Shuffles: a balanced Feistel network permutes [0, 4^h) with 4^h ≥ n; an image ≥ n is sent through again until it falls
below n ("cycle walking": the restriction of a permutation to its cycles inside [0, n) is a permutation of [0, n)).
Position i takes O(1) time and no memory, so a training run that resumes seeks its data at once.

torch waits until it is used: a study or a data set is shuffled without it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's
_GROUP, _MEMBER, _STEP = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xA24BAED4963EE407
# Small n set both: with 4 rounds some orders of 4 items come a fifth too often, and a network on 2-bit halves
# makes even permutations only, which cycle walking carries over to orders of 5 and 6 items.
_ROUNDS = 6
_MIN_HALF_BITS = 3


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed in [0, 2⁶³) for the stream called by `names`."""
    text = "\x1f".join([str(int(seed)), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: "torch.device | str" = "cpu") -> "torch.Generator":
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int, device: "torch.device | None" = None) -> Iterator[None]:
    """Inside, torch's global generators (the CPU's and `device`'s), which dropout and initialisation read, are those of
    the stream called by `names`; then they are put back."""
    import torch

    stream_seed = derive_seed(seed, *names)
    if device is None or device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed)
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(stream_seed)
            yield


def row_keys(seed: "int | Tensor", group_R: "Tensor", member_R: "Tensor") -> "Tensor":
    """(R,) int64 keys of rows named by (group, member), e.g. (context, copy), however many there are; one seed for all
    or (R,) seeds."""
    start = _mix(_times(group_R.long(), _GROUP) + _offset(seed, _GOLDEN))
    return _mix(start + _times(member_R.long(), _MEMBER))


def seed_tensor(seeds: Sequence[int]) -> "Tensor":
    """(B,) int64 for `row_keys`: the lowest 64 bits of each seed, which are all that it reads."""
    import torch

    return torch.tensor([_signed(int(seed)) for seed in seeds], dtype=torch.int64)


def row_uniforms(keys_R: "Tensor", *, step: "int | Tensor") -> "Tensor":
    """(R,) float64 in [0, 1): the number that each row draws at `step`, or at its own step of (R,) steps."""
    return _logical_shift(_mix(keys_R + _offset(step + 1, _STEP)), 11).double() * 2.0**-53


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


def _mix(x: "Tensor") -> "Tensor":
    x = x + _signed(_GOLDEN)
    x = _times(x ^ _logical_shift(x, 30), _MIX_1)
    x = _times(x ^ _logical_shift(x, 27), _MIX_2)
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: "Tensor", bits: int) -> "Tensor":
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _offset(number: "int | Tensor", constant: int) -> "int | Tensor":
    import torch

    return _times(number.long(), constant) if isinstance(number, torch.Tensor) else _signed(int(number) * constant)


def _times(x: "Tensor", constant: int) -> "Tensor":
    return x * _signed(constant)


def _signed(constant: int) -> int:
    """The int64 with the same 64 bits: torch has no wrapping unsigned arithmetic."""
    constant &= (1 << 64) - 1
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _feistel(x: NDArray[np.uint64], half_bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = x >> bits, x & mask
    for key in keys:
        mixed = right ^ key
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(_MIX_1)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(_MIX_2)
        left, right = right, left ^ (mixed >> np.uint64(64 - half_bits))
    return (left << bits) | right
