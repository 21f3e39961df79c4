"""The training engine against a bare PyTorch loop: same network, batches, AdamW, clipping and thread count.

The bare loop is what one would write by hand for a single process: it journals nothing and checks nothing. What the
engine adds must cost less than a tenth of the speed. Speed is measured from outside, by the times at which the two ask
the same task for their batches, from the second update on; checkpoints and validation, as dear as one asks for, come
after the last of them.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved_rates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from energylm.training.language_model_task import LanguageModelTask
    from energylm.training.task import Batch

VOCABULARY, LENGTH, BATCH, WINDOWS = 8192, 160, 8, 4096
STEPS, WARMUP_STEPS, CLIP_NORM, LEARNING_RATE = 12, 2, 1.0, 1e-3


def run(options: Options) -> BenchmarkResult:
    steps = 4 if options.quick else STEPS
    shape = {"layers": 1, "width": 32, "heads": 2} if options.quick else {}
    contenders = {"engine": partial(_engine, steps, shape), "bare loop": partial(_bare_loop, steps, shape)}
    rate = interleaved_rates(contenders, repeats=options.repeats)
    return BenchmarkResult(
        name="train",
        bars=[Bar("tokens/s of the engine over those of a bare loop", rate["engine"] / rate["bare loop"], 0.90)],
        details={f"tokens/s, {name}": value for name, value in rate.items()},
    )


class _RandomWindows:
    """Random tokens: their values do not matter to the speed."""

    def __init__(self) -> None:
        import numpy as np

        self.tokens = np.random.default_rng(0).integers(VOCABULARY, size=(WINDOWS, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def gather(self, indices: "NDArray[np.int64]") -> "NDArray[np.int64]":
        return self.tokens[indices]


def _task(shape: dict[str, Any]) -> "tuple[LanguageModelTask, list[float]]":
    """The task, and the times at which its batches are asked for."""
    from energylm.models.presets import build_network
    from energylm.training.language_model_task import LanguageModelTask
    from energylm.training.seeding import seeded

    times: list[float] = []

    class TimedTask(LanguageModelTask):
        """Notes when each batch is asked for."""

        def batch(self, step: int, rows: range) -> "Batch":
            times.append(time.perf_counter())
            return super().batch(step, rows)

    with seeded(0, "initialisation"):
        network = build_network(
            "mini", vocabulary_size=VOCABULARY, max_length=LENGTH, eos_token_id=0, overrides={"dropout": 0.1, **shape}
        )
    task = TimedTask(
        network, _RandomWindows(), seed=0, global_batch=BATCH, save_model=lambda model, folder: folder.mkdir()
    )
    return task, times


def _tokens_per_second(times: list[float]) -> float:
    return (len(times) - 2) * BATCH * LENGTH / (times[-1] - times[1])


def _engine(steps: int, shape: dict[str, Any]) -> float:
    from energylm.config.training import TrainingConfig
    from energylm.training.engine import train

    config = TrainingConfig.checked(
        {
            "steps": steps,
            "global_batch": BATCH,
            "clip_norm": CLIP_NORM,
            "optimizer": {"learning_rate": LEARNING_RATE},
            "schedule": {"kind": "constant", "warmup_steps": WARMUP_STEPS},
            "validation": {"every_steps": None},
        }
    )
    task, times = _task(shape)
    with tempfile.TemporaryDirectory() as folder:
        train(task, config, folder=Path(folder))
    return _tokens_per_second(times)


def _bare_loop(steps: int, shape: dict[str, Any]) -> float:
    import torch
    import torch.nn.functional as F

    task, times = _task(shape)
    network = task.model.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, eps=1e-6, weight_decay=0.0, fused=True)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
        tokens_BT = task.batch(step, range(BATCH))["tokens_BT"]
        logits_BTV = network(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return _tokens_per_second(times)
