"""Runs on many processes, all in one start: torchrun … many.py FOLDER [STOPPED].

FOLDER/none-float32, …      50 steps without and with sharding, in two precisions
FOLDER/none-stopped, …      stopped after step 20, by two processes only
FOLDER/none-continued, …    the same run, or the one of that name in STOPPED, continued by this number of processes
FOLDER/none-mistaken, …     every process divides by its own count
FOLDER/families/…           a few steps of every family
FOLDER/facts.json           what only a process of the group can see
"""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from energylm.errors import ConfigError
from energylm.files import write_json
from energylm.training import engine
from energylm.training.engine import train
from energylm.training.language_model_task import LanguageModelTask
from energylm.training.processes import Processes

sys.path.append(str(Path(__file__).parent))
toy = import_module("toy")

SHARDINGS = ("none", "fsdp")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
STOP_AFTER, STEPS = 20, 50
RUN = {
    "steps": STEPS,
    "micro_batch": 3,
    "log_every_steps": 1,
    "optimizer": {"learning_rate": 1e-2, "eps": 1e-6},
    "validation": {"every_steps": 25},
    "checkpoint": {"every_steps": 20},
}
# With a large eps a step is smooth in the gradient: rounding cannot grow within the few steps of a family.
FAMILY_RUN = {"steps": 3, "micro_batch": 2, "optimizer": {"learning_rate": 1e-2, "eps": 0.1}}
SEEN = {}  # what `Watching` found


class Stopping(LanguageModelTask):
    def batch(self, step, rows):
        if step > STOP_AFTER:
            raise KeyboardInterrupt
        return super().batch(step, rows)


class Watching(LanguageModelTask):
    """Looks at its parameters between two updates, in the loss and in validation."""

    def batch(self, step, rows):
        self._look("between")
        return super().batch(step, rows)

    def loss(self, model, batch):
        self._look("loss" if torch.is_grad_enabled() else "validation")
        return super().loss(model, batch)

    def _look(self, when):
        parameters = list(self.model.parameters())
        own = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
        SEEN[when] = {
            "sharded": sum(isinstance(p, DTensor) for p in parameters),
            "parameters": len(parameters),
            "own_part": own / sum(p.numel() for p in parameters),
            "tied": self.model.lm_head.weight is self.model.transformer.wte.weight,
        }


class Idle(LanguageModelTask):
    """Its model has a parameter that the loss does not use."""

    def __init__(self, network, *windows, **options):
        network.transformer.idle = torch.nn.Linear(2, 2, dtype=network.dtype)
        super().__init__(network, *windows, **options)


class OwnCounts(Processes):
    """The mistake: a sum that is not taken, so that each process divides by W times its own count."""

    def sum(self, values):
        return values * self.world


def run(folder, *, sharding, dtype=torch.float64, task_class=LanguageModelTask, **settings):
    task = toy.task(toy.network(dropout=0.0, dtype=dtype), task_class=task_class)
    train(task, toy.config(**RUN | {"sharding": sharding} | settings), folder=folder)


def stop(folder, *, sharding):
    try:
        run(folder, sharding=sharding, task_class=Stopping)
    except KeyboardInterrupt:
        return
    raise AssertionError("it was to be stopped")


def mistake(folder, *, sharding):
    engine.Processes = OwnCounts
    try:
        run(folder, sharding=sharding, steps=10)
    finally:
        engine.Processes = Processes


def refused(folder, *, sharding):
    try:
        run(folder, sharding=sharding, task_class=Idle, steps=2)
    except ConfigError as error:
        return str(error)
    return None


def run_family(name, folder, *, sharding):
    families = import_module("families")  # slow to import
    task = families.make(name)
    settings = FAMILY_RUN | {"sharding": sharding, "global_batch": getattr(task, "global_batch", families.BATCH)}
    if name in ("cmlm", "seq2seq"):
        settings["global_batch"] = import_module(f"test_{name}_task").BATCH
    if name.startswith("elect"):
        settings["validation"] = {"metric": "noise_loss"}
    train(task, toy.config(**settings), folder=folder)
    return task


def main(folder, stopped=None):
    group = Processes(precision="fp32")
    facts = {"world": group.world, "seen": {}, "idle": {}, "families": {}}
    for sharding in SHARDINGS:
        applied = sharding if group.world > 1 else "none"
        if applied == sharding:
            for name, dtype in DTYPES.items():
                run(folder / f"{sharding}-{name}", sharding=sharding, dtype=dtype)
        if group.world == 2:
            stopped = folder
            stop(folder / f"{sharding}-stopped", sharding=sharding)
            for_two(folder, facts, sharding)
        if group.is_main:
            shutil.copytree(stopped / f"{sharding}-stopped", folder / f"{sharding}-continued")
        group.wait()
        run(folder / f"{sharding}-continued", sharding=applied)
    if group.is_main:
        write_json(folder / "facts.json", facts)


def for_two(folder, facts, sharding):
    """What two processes show is shown for any number."""
    run(folder / f"{sharding}-watched", sharding=sharding, task_class=Watching, steps=3)
    facts["seen"][sharding] = dict(SEEN)
    run(folder / f"{sharding}-bf16", sharding=sharding, dtype=torch.float32, precision="bf16", steps=5)
    mistake(folder / f"{sharding}-mistaken", sharding=sharding)
    facts["idle"][sharding] = refused(folder / f"{sharding}-idle", sharding=sharding)
    for name in import_module("families").FAMILIES:
        task = run_family(name, folder / "families" / sharding / name, sharding=sharding)
        is_plain = not any(isinstance(parameter, DTensor) for parameter in task.model.parameters())
        facts["families"].setdefault(name, {})[sharding] = is_plain


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
