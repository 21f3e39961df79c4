"""Accelerate, held at arm's length: device, precision, ranks, sums over processes, and the threads of a CPU.

Several processes come from `torchrun --nproc_per_node N`. Two silent failures of Accelerate are made loud here: one
process where several were asked for, and training in float32 where float16 was asked for but the device has none. On a
CPU a run keeps its number of threads, and bfloat16 products that would crash are computed in another way.

Relations  `sharding` has the other way to share a model among processes, FSDP; `engine` uses both.
"""

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from torch import Tensor, nn

from energylm.errors import ConfigError
from energylm.files import folder_lock
from energylm.numerics.kernels import onednn_bfloat16_works
from energylm.progress import say
from energylm.training.task import Batch, Share, Task

# Others wait while one process calibrates and saves a model; torch's 10 minutes are too short for that.
PATIENCE = timedelta(hours=1)


class Processes:
    """This process among its peers. All ranks must see the same run folder; only rank 0 writes to it."""

    def __init__(self, *, precision: str) -> None:
        mixed_precision = "no" if precision == "fp32" else precision
        # Accelerate keeps the precision of the first run in a process-wide singleton; the process group stays.
        if AcceleratorState._shared_state and AcceleratorState().mixed_precision != mixed_precision:
            AcceleratorState._reset_state()
        self.accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision=mixed_precision,
            # The engine divides by global counts itself; the plugin keeps an environment variable from dividing again.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            kwargs_handlers=[
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
                InitProcessGroupKwargs(timeout=PATIENCE),
            ],
        )
        self.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world: int = self.accelerator.num_processes
        expected = int(os.environ.get("WORLD_SIZE", "1"))
        if self.world != expected:
            raise ConfigError(
                f"WORLD_SIZE is {expected} but Accelerate runs {self.world} process(es); "
                "start with torchrun, and set ACCELERATE_USE_CPU=true to train on CPUs"
            )
        if precision == "fp16" and self.accelerator.scaler is None:
            raise ConfigError(f"the device {self.device.type} has no fp16 training; use precision bf16 or fp32")

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> Share:
        return Share(rank=self.rank, world=self.world)

    def rows(self, global_batch: int) -> range:
        """This process's contiguous part of the rows of a global batch; parts differ by at most one row."""
        if global_batch < self.world:
            raise ConfigError(f"global_batch {global_batch} is smaller than the number of processes, {self.world}")
        return range(global_batch * self.rank // self.world, global_batch * (self.rank + 1) // self.world)

    def micro_batches(self, global_batch: int, size: int | None, *, equally_many: bool) -> list[range]:
        """This process's rows in pieces of at most `size`; if asked, in as many pieces as every other process has."""
        rows = self.rows(global_batch)
        if not equally_many:
            return micro_batches(rows, size)
        most = math.ceil(global_batch / self.world)
        pieces = math.ceil(most / (size or most))
        if global_batch // self.world < pieces:
            raise ConfigError(
                f"global_batch {global_batch} cut into micro-batches of {size} gives some of {self.world} processes "
                "more pieces than others, which sharding cannot serve; raise micro_batch, or make global_batch a "
                "multiple of the number of processes"
            )
        ends = [len(rows) * piece // pieces for piece in range(pieces + 1)]
        return [rows[start:stop] for start, stop in itertools.pairwise(ends)]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes, on every process."""
        if self.world == 1:
            return values
        # Between accelerators, only what lies on them travels.
        total: Tensor = self.accelerator.reduce(values.to(self.device), reduction="sum")
        return total.to(values.device)

    def all_names(self, names: Iterable[str]) -> list[str]:
        """The names that any process has, in one order for all of them."""
        if self.world == 1:
            return sorted(names)
        of_processes: list[list[str]] = [[]] * self.world
        torch.distributed.all_gather_object(of_processes, list(names))
        return sorted(set().union(*of_processes))

    def synchronised(self, model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """With DDP, gradients travel between processes once per update, with the last micro-batch; sharded ones do so
        with every micro-batch, since no process has room for all of them."""
        return nullcontext() if is_last else self.accelerator.no_sync(model)

    def refuse_idle_parameters(self, model: nn.Module) -> None:
        """DDP waits for every gradient: without one of them, none that travels beside it is summed."""
        if self.world == 1:
            return
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise ConfigError(
                    f"the loss does not use the parameter {name}, which {self.world} processes with a copy each cannot "
                    "train; freeze it, set training.sharding to fsdp, or use one process"
                )

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def lock(self, folder: Path) -> AbstractContextManager[None]:
        return folder_lock(folder) if self.is_main else nullcontext()


class LossModule(nn.Module):
    """Computes a task's sums in `forward`, where DDP and autocast hook in; the task may call any part of its model."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model, self._loss = task.model, task.loss

    def forward(self, batch: Batch) -> dict[str, dict[str, Any]]:
        sums = self._loss(self.model, batch)
        return {"losses": sums.losses, "metrics": sums.metrics}


def micro_batches(rows: range, size: int | None) -> list[range]:
    """`rows` cut into consecutive pieces of at most `size`."""
    size = size or len(rows)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


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
    """Where oneDNN's bfloat16 product would kill the process it is switched off meanwhile; torch's own is slower."""
    if not needed or onednn_bfloat16_works():
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
