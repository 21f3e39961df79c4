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


def interleaved(contenders: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat of each contender, taking turns: a slow minute hits all alike. One unmeasured warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work()
    for _ in range(repeats):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def interleaved_rates(contenders: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, float]:
    """The median of what each contender says of its own speed, taking turns; the first round warms up, uncounted."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + repeats):
        for name, work in contenders.items():
            rates[name].append(work())
    return {name: median(values[1:]) for name, values in rates.items()}


def peak_megabytes(module: str, *arguments: str) -> float:
    """Peak resident memory of `python -m module arguments`, which tells it at its end by `print_peak_megabytes`."""
    command = [sys.executable, "-m", module, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak_megabytes() -> None:
    """By VmHWM; `ru_maxrss` would count the parent's memory from before the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(int(kilobytes) / 1000)


def median(values: list[float]) -> float:
    return statistics.median(values)


def matmul_flops_per_second(*, size: int = 2048, repeats: int = 9) -> float:
    """The limit: floating-point operations a second of a square float32 matrix product, median of `repeats`."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = interleaved({"matmul": lambda: a @ b}, repeats=repeats)["matmul"]
    return 2 * size**3 / median(seconds)


def this_machine() -> dict[str, Any]:
    import torch

    return {
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
