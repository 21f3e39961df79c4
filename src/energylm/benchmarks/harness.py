"""Side-by-side measurements in one run: interleaved rounds, medians with their spread, three verdicts on every bar.

Timings on shared machines are noisy, so a benchmark never compares with a number from another day: contenders take
turns within one run, a ratio is formed within each round, and its median stands beside its spread, the interquartile
range over the rounds (the middle half of them). A bar *holds* where the whole spread lies on its good side, *does not
hold* where it lies on the other, and is *too close to call* between: more `--repeats` may tell. What is measured once
(memory, counts, differences of scores) has no spread.

A benchmark is a module with `run(options) -> BenchmarkResult`. It ends within five minutes on two cores: rounds stop
early, never before the third, where the next would take longer than that. `--full` lifts the limit.
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
from typing import Any, Literal

import numpy as np

from energylm.progress import format_seconds, progress, say
from energylm.records import Record
from energylm.tables import Cell, Table

LONGEST_SECONDS = 300.0  # of a benchmark without `--full`
LEAST_ROUNDS = 3  # with fewer there is no middle half

Verdict = Literal["holds", "does not hold", "too close to call"]


@dataclass(frozen=True)
class Rounds(Record):
    """What was measured, round by round. A ratio pairs the rounds of two contenders, which were neighbours in time."""

    values: tuple[float, ...]

    computed = ("median", "low", "high")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return float(np.quantile(self.values, 0.25))

    @property
    def high(self) -> float:
        return float(np.quantile(self.values, 0.75))

    def __truediv__(self, other: "Rounds | float") -> "Rounds":
        if isinstance(other, Rounds):
            return Rounds(tuple(own / its for own, its in zip(self.values, other.values, strict=True)))
        return Rounds(tuple(value / other for value in self.values))

    def __rtruediv__(self, amount: float) -> "Rounds":
        return Rounds(tuple(amount / value for value in self.values))

    def __rmul__(self, factor: float) -> "Rounds":
        return Rounds(tuple(factor * value for value in self.values))

    @property
    def middle_half(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class Bar(Record):
    """One thing that must hold: `measured` at least (or at most) `bar`, and so must its spread where it has one."""

    what: str
    measured: float
    bar: float
    at_least: bool = True
    low: float | None = None
    high: float | None = None

    computed = ("verdict", "holds")

    @classmethod
    def on(cls, what: str, rounds: Rounds, bar: float, *, at_least: bool = True) -> "Bar":
        """On the median of rounds, with their spread."""
        return cls(what, rounds.median, bar, at_least, rounds.low, rounds.high)

    @property
    def verdict(self) -> Verdict:
        low = self.measured if self.low is None else self.low
        high = self.measured if self.high is None else self.high
        worst, best = (low, high) if self.at_least else (-high, -low)
        bar = self.bar if self.at_least else -self.bar
        return "holds" if worst >= bar else "does not hold" if best < bar else "too close to call"

    @property
    def holds(self) -> bool:
        return self.verdict == "holds"

    @property
    def row(self) -> list[Cell]:
        spread = None if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"
        return [self.what, self.measured, spread, f"{'≥' if self.at_least else '≤'} {self.bar:g}", self.verdict]


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
        details: list[list[Cell]] = []
        for what, value in self.details.items():
            if isinstance(value, Rounds):
                details.append([what, value.median, value.middle_half, None, None])
            else:
                details.append([what, value if isinstance(value, float) else str(value), None, None, None])
        return Table(
            ["what", "measured", "middle half", "bar", "verdict"],
            [*[bar.row for bar in self.bars], *details],
            convention=f"bench {self.name}: medians of rounds in which contenders take turns, and their middle half",
        )


@dataclass(frozen=True)
class Options:
    """`repeats` rounds at most; `quick` shrinks the work so that a test can run it (its bars then mean nothing); `full`
    lets it take as long as it takes."""

    repeats: int
    quick: bool = False
    full: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Until the benchmark should end."""
        return float("inf") if self.full else self.started + LONGEST_SECONDS - time.monotonic()


def interleaved(
    contenders: Mapping[str, Callable[[], float]], options: Options, *, unit: str, share: float = 1.0
) -> dict[str, Rounds]:
    """What each contender says of itself in each round, e.g. its speed in `unit`, with a line a round for the person
    who waits. They take turns, so that a slow minute hits all alike; the first round warms up, uncounted. May take
    `share` of the time that is left."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    began, allowed = time.monotonic(), share * options.seconds_left
    rounds = 0
    with progress("measuring", total=(1 + options.repeats) * len(contenders), unit="measurement") as running:
        while rounds <= options.repeats:
            for name, measure in contenders.items():
                values[name].append(measure())
                running.advance(note=name)
            spent, rounds = time.monotonic() - began, rounds + 1
            last = ", ".join(f"{name} {of_rounds[-1]:.4g}" for name, of_rounds in values.items())
            left = format_seconds(max(0.0, min(allowed - spent, spent / rounds * (1 + options.repeats - rounds))))
            title = f"round {rounds - 1} of {options.repeats}" if rounds > 1 else "warm-up"
            say(f"{title}: {last} {unit}; {left} left")
            if LEAST_ROUNDS < rounds <= options.repeats and spent * (rounds + 1) / rounds > allowed:
                say(f"{rounds - 1} rounds must do within {LONGEST_SECONDS:.0f} seconds; --full takes all")
                break
    return {name: Rounds(tuple(of_rounds[1:])) for name, of_rounds in values.items()}


def interleaved_seconds(
    contenders: Mapping[str, Callable[[], object]], options: Options, *, share: float = 1.0
) -> dict[str, Rounds]:
    """Each contender's seconds, likewise."""
    timed = {name: partial(seconds_of, run) for name, run in contenders.items()}
    return interleaved(timed, options, unit="seconds", share=share)


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_megabytes(module: str, *arguments: str) -> float:
    """Peak resident memory of `python -m module arguments`, which tells it at its end by `print_peak_megabytes`."""
    say(f"peak memory of {module.rpartition('.')[2]} {' '.join(Path(argument).name for argument in arguments)}")
    command = [sys.executable, "-m", module, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak_megabytes() -> None:
    """By VmHWM; `ru_maxrss` would count the parent's memory from before the exec."""
    print(resident_megabytes(peak=True))


def private_megabytes(process: int | str = "self") -> float:
    """The memory that a process has for itself, without mapped files, which the system may drop."""
    return _status_megabytes("RssAnon", process)


def resident_megabytes(*, peak: bool = False) -> float:
    """All memory of this process that is not swapped out, now or at its peak."""
    return _status_megabytes("VmHWM" if peak else "VmRSS")


def _status_megabytes(field: str, process: int | str = "self") -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field))) / 1000


def matmul_flops_per_second(*, size: int = 2048, repeats: int = 9) -> float:
    """The limit: floating-point operations a second of a square float32 matrix product, median of `repeats`."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = [seconds_of(lambda: a @ b) for _ in range(1 + repeats)]
    return 2 * size**3 / statistics.median(seconds[1:])


def this_machine() -> dict[str, Any]:
    import torch

    return {
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
