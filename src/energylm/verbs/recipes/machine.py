"""What a plan needs to know of a machine, and how to measure it here in some seconds: `energylm plan --measure FILE`.

Each rate is the median of short bursts over a second and a half: on a machine that is shared with others, as most are
in the cloud, the best burst promises what an hour of work never sees.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pydantic import Field

from energylm.config.base import Config
from energylm.config.environment import home_folder

SECONDS, BURSTS = 1.5, 5  # of a rate, at least
MATMUL_SIZE, FLOATS, SMALL, CHAIN = 1024, 1 << 23, 1 << 10, 200
_TEXT = "The clerk of the harbour counts {} boats, mends the old bridge, and remembers a winter of {} letters.\n"


class MachineConfig(Config):
    """What one process has: all cores of a machine, or a GPU. `energylm plan --measure FILE` writes this file."""

    name: str = Field("this machine", description="What the plan calls it.")
    matmul_gflops: float = Field(gt=0, description="Billions of operations a second of a large float32 matrix product.")
    memory_gigabytes_per_second: float = Field(gt=0, description="Read and written by a large element-wise operation.")
    operation_microseconds: float = Field(gt=0, description="Of an operation too small for its size to matter.")
    text_megabytes_per_second: float = Field(gt=0, description="Of encoding text with a byte-level BPE.")
    memory_gigabytes: float | None = Field(None, gt=0, description="That a process may use; none = not checked.")
    disk_gigabytes: float | None = Field(None, gt=0, description="That are free; none = not checked.")
    network_gigabytes_per_second: float = Field(
        1.0, gt=0, description="Between processes, for the gradients of an update."
    )


def measure_machine(*, name: str = "this machine") -> MachineConfig:
    import torch

    from energylm.data.tokenizer import plain_encoder, train_tokenizer

    a, b = torch.randn(MATMUL_SIZE, MATMUL_SIZE), torch.randn(MATMUL_SIZE, MATMUL_SIZE)
    long, small = torch.randn(FLOATS), torch.randn(SMALL)
    texts = [_TEXT.format(number, number * 7 % 1000) for number in range(2000)]
    encoder = plain_encoder(train_tokenizer(texts, vocabulary_size=1024))

    def chain_of_small_operations() -> None:
        value = small
        for _ in range(CHAIN):
            value = value + 1.0

    def encode() -> None:
        encoder.encode_batch_fast(texts)

    return MachineConfig(
        name=name,
        matmul_gflops=2 * MATMUL_SIZE**3 / _typical(lambda: a @ b) / 1e9,
        memory_gigabytes_per_second=2 * 4 * FLOATS / _typical(lambda: torch.add(long, 1.0, out=long)) / 1e9,
        operation_microseconds=_typical(chain_of_small_operations) / CHAIN * 1e6,
        text_megabytes_per_second=sum(map(len, texts)) / _typical(encode) / 1e6,
        memory_gigabytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        disk_gigabytes=shutil.disk_usage(_existing(home_folder())).free / 1e9,
    )


def _typical(work: Callable[[], object]) -> float:
    """The seconds of one burst, in the middle of all."""
    work()
    seconds: list[float] = []
    while len(seconds) < BURSTS or sum(seconds) < SECONDS:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)
