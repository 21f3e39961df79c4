"""The training engine against a bare PyTorch loop: same network, batches, AdamW, clipping and thread count.

The bare loop is what one would write by hand for a single process: it journals nothing and checks nothing. What the
engine adds must cost less than a tenth of the speed. Speed is measured from outside, by the times at which the two ask
the same task for their batches, from the second update on; checkpoints and validation, as dear as one asks for, come
after the last of them.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, Rounds, interleaved
from energylm.config.training import TrainingConfig
from energylm.models.presets import build_network
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.language_model_task import LanguageModelTask
from energylm.training.task import Batch

VOCABULARY, LENGTH, BATCH, WINDOWS = 8192, 160, 8, 4096
STEPS, WARMUP_STEPS, CLIP_NORM, LEARNING_RATE = 12, 2, 1.0, 1e-3
QUICK = {"layers": 1, "width": 32, "heads": 2}


def run(options: Options) -> BenchmarkResult:
    steps = 4 if options.quick else STEPS
    shape = QUICK if options.quick else {}
    updates = TimedUpdates(
        partial(_task, shape),
        _loss,
        per_update=BATCH * LENGTH,
        batch=BATCH,
        steps=steps,
        learning_rate=LEARNING_RATE,
        clip_norm=CLIP_NORM,
        warmup_steps=WARMUP_STEPS,
    )
    rate = updates.compared(options, unit="tokens/s")
    return BenchmarkResult(
        name="train",
        bars=[Bar.on("tokens/s of the engine over those of a bare loop", rate["engine"] / rate["bare loop"], 0.90)],
        details={f"tokens/s, {name}": value for name, value in rate.items()},
    )


class _RandomWindows:
    """Random tokens: their values do not matter to the speed."""

    def __init__(self) -> None:
        self.tokens = np.random.default_rng(0).integers(VOCABULARY, size=(WINDOWS, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def gather(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.tokens[indices]


@dataclass(frozen=True)
class TimedUpdates:
    """Updates of a task by the engine and by a loop as one would write it by hand, from the times of their batches."""

    make_task: Callable[[], Any]
    loss: Callable[[Any, Batch], Tensor]  # of a network on a batch
    per_update: int  # what an update handles, e.g. tokens
    batch: int
    steps: int
    learning_rate: float
    clip_norm: float
    warmup_steps: int

    def compared(self, options: Options, *, unit: str) -> dict[str, Rounds]:
        """So much is handled a second by each of the two."""
        return interleaved({"engine": self.engine, "bare loop": self.bare_loop}, options, unit=unit)

    def engine(self) -> float:
        config = TrainingConfig.checked(
            {
                "steps": self.steps,
                "global_batch": self.batch,
                "clip_norm": self.clip_norm,
                "optimizer": {"learning_rate": self.learning_rate},
                "schedule": {"kind": "constant", "warmup_steps": self.warmup_steps},
                "validation": {"every_steps": None},
            }
        )
        task, times = self._timed_task()
        with tempfile.TemporaryDirectory() as folder:
            train(task, config, folder=Path(folder))
        return self._per_second(times)

    def bare_loop(self) -> float:
        task, times = self._timed_task()
        network = task.model.train()
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=self.learning_rate, eps=1e-6, weight_decay=0.0, fused=True
        )
        for step in range(1, self.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * min(1.0, step / self.warmup_steps)
            self.loss(network, task.batch(step, range(self.batch))).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        return self._per_second(times)

    def _timed_task(self) -> tuple[Any, list[float]]:
        """The task, and the times at which its batches are asked for."""
        task, times = self.make_task(), list[float]()
        batch = task.batch

        def timed_batch(step: int, rows: range) -> Batch:
            times.append(time.perf_counter())
            made: Batch = batch(step, rows)
            return made

        task.batch = timed_batch
        return task, times

    def _per_second(self, times: list[float]) -> float:
        return (len(times) - 2) * self.per_update / (times[-1] - times[1])


def make_update(*, quick: bool) -> Callable[[], None]:
    """One update by a bare loop, as often as it is called."""
    task = _task(QUICK if quick else {})
    network = task.model.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, fused=True)
    steps = count(1)

    def update() -> None:
        _loss(network, task.batch(next(steps), range(BATCH))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _task(shape: dict[str, Any]) -> LanguageModelTask:
    sizes = {"vocabulary_size": VOCABULARY, "max_length": LENGTH, "eos_token_id": 0}
    with seeded(0, "initialisation"):
        network = build_network("mini", **sizes, overrides={"dropout": 0.1, **shape})
    return LanguageModelTask(
        network, _RandomWindows(), seed=0, global_batch=BATCH, save_model=lambda model, folder: folder.mkdir()
    )


def _loss(network: Any, batch: Batch) -> Tensor:
    tokens_BT = batch["tokens_BT"]
    logits_BTV = network(input_ids=tokens_BT[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
