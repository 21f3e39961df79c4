"""`energylm plan`: what a recipe or the demo will cost, before it is run; and the rates of the machine that runs it.

`energylm plan --measure FILE` measures them here. Each rate is the median of short bursts over a second and a half: on
a machine that is shared with others, as most are in the cloud, the best burst promises what an hour of work never sees.

Relations  `plan_cost` counts, turns counts into time, and fits the factors between the two.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.config.base import Config, load_config
from energylm.config.environment import home_folder, without_fetching
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.recipes.recipe import Scale, load_recipe
from energylm.verbs.verb import Positional, Verb

DEMO = "demo"
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


class Plan(Verb):
    """Estimate FLOPs, memory, disk and time, step by step. Steps that are there already cost nothing.

    Without --machine the rates of this machine are measured in some seconds; let nothing else run meanwhile. Training
    ends at its last step in a plan, though validation may end it earlier.
    """

    examples = (
        "energylm plan deng2020/table1",
        "energylm plan demo --json plan.json",
        "energylm plan --measure machine.yaml",
        "energylm plan deng2020/table1 --scale paper --machine gpu.yaml --nodes 8 --processes 8",
    )

    recipe: Annotated[str | None, Positional("RECIPE")] = Field(
        None, description="A recipe, e.g. deng2020/table1, a YAML file of your own, or `demo`."
    )
    scale: Scale = Field("mini", description="Of a recipe.")
    corpus: str | None = Field(
        None, description="Which of the recipe's corpora; without it the first whose data are here."
    )
    seeds: int | None = Field(None, ge=1, description="Runs of the recipe; none = as many as its scale says.")
    machine: Path | None = Field(
        None, description="YAML file with the rates of a machine; without it this one is measured."
    )
    nodes: int = Field(1, ge=1, description="Machines.")
    processes: int = Field(1, ge=1, description="Processes on each machine, each with the rates of --machine.")
    text_gigabytes: float | None = Field(
        None, gt=0, description="Text of each data set from the hub whose size is not known here."
    )
    fresh: bool = Field(False, description="Count steps whose artefacts are there, too.")
    measure: Path | None = Field(None, description="Measure this machine, write its rates to this file, and leave.")
    fit: tuple[Path, ...] = Field(
        (), description="Fit the factors anew to kept results (results.json) of this machine, and leave."
    )

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if self.recipe is None and self.measure is None and not self.fit:
            raise ValueError("name a recipe, e.g. energylm plan deng2020/table1, or demo; or say --measure FILE")
        return self

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.nodes * self.processes

    def rates(self) -> MachineConfig:
        """Of the file, or measured here."""
        return measure_machine() if self.machine is None else load_config(MachineConfig, self.machine)

    def check(self, job: Job = DEFAULT_JOB) -> str:
        machine = "this machine, measured" if self.machine is None else load_config(MachineConfig, self.machine).name
        if self.measure is not None:
            return f"would measure this machine and write its rates to {self.measure}"
        if self.fit:
            return f"would fit the factors to {len(self.fit)} kept results with the rates of {machine}"
        if self.recipe is not None and self.recipe != DEMO:
            load_recipe(self.recipe)
        return f"would count the work of {self.recipe} and turn it into time on {machine}"

    def run(self, job: Job = DEFAULT_JOB) -> Record:
        self.check(job)  # a misspelt name is told before anything is measured
        from energylm.verbs.recipes.plan_cost import MeasuredMachine, fit_factors, plan_cost, save_factors

        if self.measure is not None:
            return MeasuredMachine.written(self.measure)
        if self.fit:
            fitted = fit_factors(self.fit, self.rates())
            save_factors(fitted)
            return fitted
        with without_fetching():
            return plan_cost(self, self.rates())

    def shown(self, result: Any) -> str:
        text: str = result.in_words()
        return text

    def remarks(self, result: Any) -> list[str]:
        return []


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


def _typical(burst: Callable[[], object]) -> float:
    """The seconds of one burst, in the middle of all."""
    burst()
    seconds: list[float] = []
    while len(seconds) < BURSTS or sum(seconds) < SECONDS:
        began = time.perf_counter()
        burst()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)
