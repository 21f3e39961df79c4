"""Counter-based random numbers: a pure function of (seed, row, step), vectorised over rows.

    key_r  = mix(mix(seed + a·group_r) + b·member_r)            u_r(step) = mix(key_r + c·step) / 2⁵³  in [0, 1)

`mix` is the 64-bit finaliser of SplitMix64 (Steele, Lea & Flood 2014). A generator a row would cost a Python object and
a state a row; a shared generator would tie a row's numbers to its batch. Here a row keeps its numbers in any batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_GROUP, _MEMBER, _STEP = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xA24BAED4963EE407


def row_keys(seed: int | Tensor, group_R: Tensor, member_R: Tensor) -> Tensor:
    """(R,) int64 keys of rows named by (group, member), e.g. (context, copy), however many there are; one seed for all
    or (R,) seeds."""
    offset = _times(seed, _GOLDEN) if isinstance(seed, Tensor) else _signed(int(seed) * _GOLDEN)
    start = _mix(_times(group_R.long(), _GROUP) + offset)
    return _mix(start + _times(member_R.long(), _MEMBER))


def seed_tensor(seeds: Sequence[int]) -> Tensor:
    """(B,) int64 for `row_keys`: the lowest 64 bits of each seed, which are all that it reads."""
    return torch.tensor([_signed(int(seed)) for seed in seeds], dtype=torch.int64)


def row_uniforms(keys_R: Tensor, *, step: int | Tensor) -> Tensor:
    """(R,) float64 in [0, 1): the number that each row draws at `step`, or at its own step of (R,) steps."""
    offset = _times(step.long() + 1, _STEP) if isinstance(step, Tensor) else _signed((step + 1) * _STEP)
    bits = _mix(keys_R + offset)
    return _logical_shift(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(_GOLDEN)
    x = _times(x ^ _logical_shift(x, 30), 0xBF58476D1CE4E5B9)
    x = _times(x ^ _logical_shift(x, 27), 0x94D049BB133111EB)
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _times(x: Tensor, constant: int) -> Tensor:
    return x * torch.tensor(_signed(constant), dtype=torch.int64, device=x.device)


def _signed(constant: int) -> int:
    """The int64 with the same 64 bits: torch has no wrapping unsigned arithmetic."""
    constant &= (1 << 64) - 1
    return constant - (1 << 64) if constant >= 1 << 63 else constant
