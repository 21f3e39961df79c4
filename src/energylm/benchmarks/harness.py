"""Side-by-side measurements in one run: interleaved repeats, medians, the machine's matrix-multiply rate as limit.

Timings on shared machines are noisy, so a benchmark never compares with a number from another day: contenders take
turns within one run, and bars are set on ratios of medians. A benchmark is a module with
`run(options) -> BenchmarkResult`.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from energylm.records import Record
from energylm.tables import Cell, Table


@dataclass(frozen=True)
class Bar(Record):
    """One thing that must hold: `measured` at least (or at most) `bar`."""

    what: str
    measured: float
    bar: float
    at_least: bool = True

    computed = ("holds",)

    @property
    def holds(self) -> bool:
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar


@dataclass(frozen=True)
class BenchmarkResult(Record):
    name: str
    bars: list[Bar]
    details: dict[str, Any] = field(default_factory=dict)  # numbers without a bar, for the table and the JSON

    computed = ("machine",)

    @property
    def holds(self) -> bool:
        return all(bar.holds for bar in self.bars)

    @property
    def machine(self) -> dict[str, Any]:
        return this_machine()

    @property
    def table(self) -> Table:
        bars: list[list[Cell]] = [
            [bar.what, bar.measured, f"{'≥' if bar.at_least else '≤'} {bar.bar:g}", "yes" if bar.holds else "NO"]
            for bar in self.bars
        ]
        details: list[list[Cell]] = [
            [what, value if isinstance(value, float) else str(value), None, None]
            for what, value in self.details.items()
        ]
        return Table(["what", "measured", "bar", "holds"], [*bars, *details], convention=f"bench {self.name}")


@dataclass(frozen=True)
class Options:
    """`repeats` per contender; `quick` shrinks the work so that a test can run it (its bars then mean nothing)."""

    repeats: int
    quick: bool


def interleaved(contenders: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, float]:
    """The median of what each contender says of itself, e.g. its speed. They take turns, so that a slow minute hits all
    alike; the first round warms up, uncounted."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + repeats):
        for name, measure in contenders.items():
            values[name].append(measure())
    return {name: statistics.median(of_rounds[1:]) for name, of_rounds in values.items()}


def interleaved_seconds(contenders: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """The median of each contender's seconds, likewise."""
    return interleaved({name: partial(seconds_of, run) for name, run in contenders.items()}, repeats=repeats)


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_megabytes(module: str, *arguments: str) -> float:
    """Peak resident memory of `python -m module arguments`, which tells it at its end by `print_peak_megabytes`."""
    command = [sys.executable, "-m", module, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak_megabytes() -> None:
    """By VmHWM; `ru_maxrss` would count the parent's memory from before the exec."""
    print(_status_megabytes("VmHWM"))


def private_megabytes(process: int | str = "self") -> float:
    """The memory that a process has for itself, without mapped files, which the system may drop."""
    return _status_megabytes("RssAnon", process)


def _status_megabytes(field: str, process: int | str = "self") -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field))) / 1000


def matmul_flops_per_second(*, size: int = 2048, repeats: int = 9) -> float:
    """The limit: floating-point operations a second of a square float32 matrix product, median of `repeats`."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / interleaved_seconds({"matmul": lambda: a @ b}, repeats=repeats)["matmul"]


def this_machine() -> dict[str, Any]:
    import torch

    return {
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
