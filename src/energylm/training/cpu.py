"""What training asks of a CPU: the same number of threads throughout a run, and bfloat16 products that do not crash."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from energylm.progress import say

_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Sums in another number of threads round differently: a resumed run must use the count it began with."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def sound_bfloat16(*, needed: bool) -> Iterator[None]:
    """Some virtual machines announce AMX but do not grant it: oneDNN's bfloat16 product then kills the process.

    Where a trial in a process of its own dies, oneDNN is switched off meanwhile; torch's own product is slower.
    """
    if not needed or _onednn_bfloat16_works():
        yield
        return
    say(
        "bf16 matrix products crash in this machine's oneDNN; using torch's slower ones (precision fp32 is faster here)"
    )
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property that torch makes by hand
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@lru_cache(maxsize=1)
def _onednn_bfloat16_works() -> bool:
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False).returncode == 0
