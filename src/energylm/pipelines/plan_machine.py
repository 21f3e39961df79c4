"""Measure what a plan needs to know of this machine, in a second or two: `energylm plan --measure FILE`.

Each rate is the best of many short bursts: a plan is for a machine that does nothing else, and the best burst is the
one that nobody disturbed.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from energylm.config.places import home_folder
from energylm.config.plan import MachineConfig

BURSTS, MATMUL_SIZE, FLOATS, SMALL, CHAIN = 25, 1024, 1 << 23, 1 << 10, 200
_TEXT = "The clerk of the harbour counts {} boats, mends the old bridge, and remembers a winter of {} letters.\n"


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
        matmul_gflops=2 * MATMUL_SIZE**3 / _best(lambda: a @ b) / 1e9,
        memory_gigabytes_per_second=2 * 4 * FLOATS / _best(lambda: torch.add(long, 1.0, out=long)) / 1e9,
        operation_microseconds=_best(chain_of_small_operations) / CHAIN * 1e6,
        text_megabytes_per_second=sum(map(len, texts)) / _best(encode, bursts=5) / 1e6,
        memory_gigabytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        disk_gigabytes=shutil.disk_usage(_existing(home_folder())).free / 1e9,
    )


def _best(work: Callable[[], object], *, bursts: int = BURSTS) -> float:
    work()
    seconds = []
    for _ in range(bursts):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)
