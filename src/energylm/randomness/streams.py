"""Named generator streams: `generator(seed, "dropout", step)` never collides with `generator(seed, "initialisation")`.

The seed of a stream is a SHA-256 of the master seed and the names, so it is the same on every machine and version.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed in [0, 2⁶³) for the stream called by `names`."""
    text = "\x1f".join([str(int(seed)), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: "torch.device | str" = "cpu") -> "torch.Generator":
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
