"""What a family of models must provide to be trained: the contract between a task and the engine.

A task is a small object. It owns the model (one module; a generator and a discriminator go into one container), says
what a batch is as a pure function of the step, and turns a batch into *sums*. The engine adds the sums and the counts
of all micro-batches and processes before it divides, so the result does not depend on how a batch was cut:

    loss = Σ_k weight_k · (Σ_microbatches, processes sum_k) / (Σ_microbatches, processes count_k)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Sums:
    """What one micro-batch contributes."""

    losses: dict[str, Tensor]  # term -> differentiable sum (); divided by the global count of that term
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # name -> (sum, count), journalled only


@dataclass(frozen=True)
class Share:
    """The part of some work that falls to one process: items rank, rank + world, rank + 2·world, …"""

    rank: int = 0
    world: int = 1


class Task(Protocol):
    """Everything the engine knows about a family."""

    loss_weights: Mapping[str, float]  # the loss terms and their weights in the total

    @property
    def model(self) -> nn.Module:
        """Every module with trainable parameters, in one."""
        ...

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """JSON-able description of data and model; a checkpoint refuses to continue under another one."""
        ...

    def batch(self, step: int, rows: range) -> Batch:
        """Rows `rows` of the global batch of update `step` (1, 2, …) on the CPU: a pure function of seed and step."""
        ...

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """This micro-batch's part of what each loss term is divided by: tokens, sequences, masked positions …"""
        ...

    def tokens(self, batch: Batch) -> int:
        """Tokens read, for the speed that is shown."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        """The sums of one micro-batch; `model` is this task's own, on the engine's device."""
        ...

    def validate(self, model: nn.Module, share: Share) -> Mapping[str, tuple[float, float]]:
        """name -> (sum, count) over this process's share of the validation data; the engine adds up and divides."""
        ...

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the trained model as `folder`. Called at the end, by one process, with the best weights in place."""
        ...


@torch.no_grad()
def validated(task: Task, model: nn.Module, batches: Iterable[Batch]) -> dict[str, tuple[float, float]]:
    """name -> (sum, count) over some batches of every loss term and metric: validation by what is trained."""
    device = next(model.parameters()).device
    totals: dict[str, tuple[float, float]] = {}
    for batch in batches:
        counts = task.counts(batch)
        sums = task.loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
        terms: dict[str, tuple[Tensor, Tensor | float]] = {n: (loss, counts[n]) for n, loss in sums.losses.items()}
        for name, (total, count) in (terms | sums.metrics).items():
            before, seen = totals.get(name, (0.0, 0.0))
            totals[name] = (before + float(total), seen + float(count))
    return totals
