"""The work of code that is about to run many times, counted by torch while it runs once on a few rows.

    update = work_of(lambda: task.loss(task.model, batch))          flops, bytes, operations of this very code

Products are those of torch's `FlopCounterMode`; bytes are what all other operations read and write; operations are
those that do something (views do nothing). Search and sampling take their own branches, so what is counted is what
will run; a plan multiplies by rows and steps. LSTMs run as single products meanwhile, since fused ones hide theirs.

Relations  `models.compute` counts transformers of known form from their sizes; `verbs.verb.Verb.cost` uses either.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from energylm.config.training import TrainingConfig
from energylm.jobs.costs import Counted, Surroundings, counted_steps
from energylm.models.compute import ADAM_FLOATS, FLOAT, Work


class _Traffic(TorchDispatchMode):
    """Operations that are no views, and the bytes that pass through them; products are counted elsewhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.operations, self.bytes = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operations += 1
            if func.overloadpacket not in PRODUCTS:
                tensors = (leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor))
                self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)


def work_of(run: Callable[[], object]) -> Work:
    """What `run` does, backward passes included."""
    flops, traffic = FlopCounterMode(display=False), _Traffic()
    is_fused = torch.backends.mkldnn.set_flags(False)[0]
    try:
        with traffic, flops:
            run()
    finally:
        torch.backends.mkldnn.set_flags(is_fused)
    return Work(float(flops.get_total_flops()), float(traffic.bytes), float(traffic.operations))


class Learner(Protocol):
    """What a `training.task.Task` shows of itself."""

    @property
    def model(self) -> nn.Module: ...

    def batch(self, step: int, rows: range) -> dict[str, Tensor]: ...

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Any: ...


def count_task(
    task: Learner,
    training: TrainingConfig,
    around: Surroundings,
    *,
    rows: int,
    validate: Callable[[], object],
    validated: float,
) -> Counted:
    """An engine run of a task, counted on the first `rows` members of a batch, which are like all others; a validation
    is `validated` times what `validate` does."""
    counted, once = Counted(), work_of(lambda: _descend(task, task.batch(1, range(rows))))
    steps = counted_steps(training, counted)
    own = training.global_batch / around.world
    passes = max(1.0, own / (training.micro_batch or own))
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    counted.add("stepping", scaled(once, own / rows, passes=passes) * steps)
    counted.add("training", Work(bytes=2 * FLOAT * ADAM_FLOATS * parameters) * steps)
    if every := training.validation.every_steps:
        times = validated / around.world
        with torch.no_grad():
            once = work_of(validate)
        counted.add("searching", scaled(once, times, passes=max(1.0, times / 64)) * math.ceil(steps / every))
    counted.memory_bytes += FLOAT * ADAM_FLOATS * parameters + once.bytes * own / passes / rows
    counted.disk_bytes = FLOAT * parameters * (2 + 3 * training.checkpoint.keep)
    return counted


def scaled(work: Work, times: float, *, passes: float) -> Work:
    """The work of so many times the rows, in so many passes."""
    return Work(work.flops * times, work.bytes * times, work.operations * passes)


def _descend(task: Learner, batch: dict[str, Tensor]) -> None:
    sum(task.loss(task.model.train(), batch).losses.values(), start=torch.zeros(())).backward()
