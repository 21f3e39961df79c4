"""Torch's global generator, seeded for a while and put back. Dropout and initialisation read nothing else.

with seeded(seed, "dropout", step, rank): …          # a pure function of the names, whatever ran before
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from energylm.randomness import derive_seed


@contextmanager
def seeded(seed: int, *names: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch's global generators (the CPU's and `device`'s) are those of the stream called by `names`."""
    stream_seed = derive_seed(seed, *names)
    if device is None or device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed)
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(stream_seed)
            yield
