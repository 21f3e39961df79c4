"""Where cost grows: seconds and extra memory against n, context, new tokens, vocabulary, chains, texts and processes.

Along each axis everything else stays, and the last three sizes give an exponent, the slope of log seconds (or log
megabytes) over log size: one of each round, hence their median and spread. Beside it stands what must be: linear in n,
chains, texts and vocabulary, since each of them is drawn, moved or scored once; for context and new tokens, where
attention is quadratic, the slope of the counted operations over the same sizes; nothing for processes, as long as each
has a processor. Memory may grow as what is handed over and kept does, linearly. The bar: the exponent is at most what
must be and a tenth and a half.

Networks are small (2 × 64): what grows is the same, and large sizes take seconds. `--full` goes up to n = 100,000.
"""

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from energylm.benchmarks.harness import (
    Bar,
    BenchmarkResult,
    Options,
    Rounds,
    interleaved,
    private_megabytes,
    resident_megabytes,
    seconds_of,
)
from energylm.benchmarks.inputs import gpt2
from energylm.benchmarks.mcmc import make_network, sample_chains
from energylm.models.causal import CausalLanguageModel
from energylm.models.decoders import decoder_for
from energylm.models.masked import MaskedNetwork
from energylm.plots import LinePlot, Series
from energylm.samplers.continuations import sample_continuations

LAYERS, WIDTH, HEADS = 2, 64, 4
N, CONTEXT, NEW, VOCABULARY, TEXT_TOKENS = 64, 16, 8, 1024, 20
TOLERANCE = 0.15
FITTED = 3  # sizes, the largest: below them fixed costs hide what grows
LEAST_MEGABYTES = 1.0  # less is the system's own coming and going
Work = Callable[[], object]


@dataclass(frozen=True)
class Axis:
    """`work(size)` is what is timed; `must` the operations that a size needs, but for a constant factor."""

    sizes: tuple[int, ...]
    beyond: tuple[int, ...]  # with `--full`
    work: Callable[[int], Work]
    must: Callable[[int], float] = float

    def chosen(self, options: Options) -> tuple[int, ...]:
        return self.sizes[:2] if options.quick else (*self.sizes, *self.beyond) if options.full else self.sizes


def drawing(*, n: int = N, context: int = CONTEXT, new: int = NEW, vocabulary: int = VOCABULARY) -> Work:
    positions = context + new
    network = gpt2(layers=LAYERS, width=WIDTH, heads=HEADS, positions=positions, vocabulary_size=vocabulary)
    ids = [1 + index % (vocabulary - 1) for index in range(context)]
    return partial(sample_continuations, decoder_for(network), [ids], n=n, max_new_tokens=new)


def operations(*, context: int = CONTEXT, new: int = NEW) -> float:
    """Of the matrix products of `drawing`: the context is read once, every new token N times."""

    def read(first: int, count: int) -> float:
        keys = count * first + count * (count + 1) / 2
        return LAYERS * (count * 24 * WIDTH**2 + 4 * WIDTH * keys)

    return read(0, context) + N * (read(context, new) + new * 2 * WIDTH * VOCABULARY)


def scoring(texts: int) -> Work:
    positions = TEXT_TOKENS + 1
    network = gpt2(layers=LAYERS, width=WIDTH, heads=HEADS, positions=positions, vocabulary_size=VOCABULARY)
    tokens_BT = torch.arange(texts * TEXT_TOKENS).view(texts, TEXT_TOKENS) % (VOCABULARY - 1) + 1
    model = CausalLanguageModel(network, start_token_id=0, eos_token_id=0)
    return partial(model.token_log_probs, tokens_BT, torch.full((texts,), TEXT_TOKENS))


def moving(chains: int) -> Work:
    return partial(sample_chains, MaskedNetwork(make_network(layers=LAYERS, width=WIDTH), mask_token_id=2), chains)


AXES = {
    "n": Axis((10, 100, 1000, 10_000, 30_000), (100_000,), lambda size: drawing(n=size)),
    "context": Axis(
        (64, 256, 1024, 2048), (4096,), lambda size: drawing(context=size), lambda size: operations(context=size)
    ),
    "new tokens": Axis((32, 96, 288), (864,), lambda size: drawing(new=size), lambda size: operations(new=size)),
    "vocabulary": Axis((4096, 16_384, 65_536, 131_072), (262_144,), lambda size: drawing(vocabulary=size)),
    "chains": Axis((4, 12, 36, 72), (108, 324), moving),
    "texts": Axis((256, 1024, 4096), (16_384, 65_536), scoring),
}


@dataclass(frozen=True)
class ScalingResult(BenchmarkResult):
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # axis → sizes, seconds, megabytes

    def plot(self) -> LinePlot:
        """Time along every axis, both in multiples of its smallest size."""
        lines = []
        for axis, curve in self.curves.items():
            x, y = curve["sizes"], curve["seconds"]
            lines.append(Series(axis, [size / x[0] for size in x], [value / y[0] for value in y]))
        return LinePlot(lines, x_label="times the smallest size", y_label="times its seconds", log_x=True, log_y=True)


def run(options: Options) -> ScalingResult:
    megabytes: dict[str, dict[int, float]] = {axis: {} for axis in AXES}
    contenders: dict[str, Callable[[], float]] = {}
    sizes = {name: axis.chosen(options) for name, axis in AXES.items()}
    for name, axis in AXES.items():
        for size in sizes[name]:
            contenders[f"{name} {size}"] = partial(_measured, axis.work(size), megabytes[name], size)
    counts = tuple(2**power for power in range(int(math.log2(os.cpu_count() or 1)) + 1))
    with ExitStack() as stack:
        workers = [stack.enter_context(DrawingProcess()) for _ in range(counts[-1])]
        for count in counts:
            contenders[f"processes {count}"] = partial(_all_draw, workers[:count])
        seconds = interleaved(contenders, options, unit="seconds")
        megabytes["processes"] = {count: sum(worker.megabytes for worker in workers[:count]) for count in counts}
    sizes |= {"processes": counts} if len(counts) > 1 else {}
    return result_of(sizes, seconds, megabytes)


def result_of(
    sizes: Mapping[str, tuple[int, ...]], seconds: Mapping[str, Rounds], megabytes: Mapping[str, Mapping[int, float]]
) -> ScalingResult:
    bars: list[Bar] = []
    curves: dict[str, dict[str, list[float]]] = {}
    for name, of_axis in sizes.items():
        fitted = of_axis[-FITTED:]
        by_size = [seconds[f"{name} {size}"] for size in fitted]
        must = exponent(fitted, [AXES[name].must(size) for size in fitted]) if name in AXES else 0.0
        slopes = Rounds(
            tuple(exponent(fitted, of_round) for of_round in zip(*(r.values for r in by_size), strict=True))
        )
        bars.append(
            Bar.on(f"{name}: exponent of time (must: {must:.2f})", slopes, round(must + TOLERANCE, 2), at_least=False)
        )
        held = [max(megabytes[name][size], LEAST_MEGABYTES) for size in fitted]
        grown = exponent(fitted, held)
        bars.append(Bar(f"{name}: exponent of memory (must: 1)", grown, 1 + TOLERANCE, at_least=False))
        curves[name] = {
            "sizes": [float(size) for size in of_axis],
            "seconds": [seconds[f"{name} {size}"].median for size in of_axis],
            "megabytes": [megabytes[name][size] for size in of_axis],
        }
    details = {
        f"{name}: {what} at {', '.join(f'{size:,.0f}' for size in curve['sizes'])}": ", ".join(
            f"{value:.3g}" for value in curve[what]
        )
        for name, curve in curves.items()
        for what in ("seconds", "megabytes")
    }
    return ScalingResult("scaling", bars, details, curves)


def exponent(sizes: tuple[int, ...], values: Any) -> float:
    """The slope of log value over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _measured(work: Work, megabytes: dict[int, float], size: int) -> float:
    """Seconds; the extra memory at its peak, the least of all rounds, goes to `megabytes`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what was freed earlier would hide what is needed now
    before = resident_megabytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    seconds = seconds_of(work)
    megabytes[size] = min(megabytes.get(size, math.inf), resident_megabytes(peak=True) - before)
    return seconds


class DrawingProcess:
    """A process of one thread that draws when it is told to."""

    def __init__(self) -> None:
        command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self.megabytes = 0.0

    def __enter__(self) -> "DrawingProcess":
        self._answers.readline()  # it is loaded
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._answers.close()
        self._process.wait()

    def begin(self) -> None:
        self._requests.write("draw\n")
        self._requests.flush()

    def end(self) -> None:
        self.megabytes = float(self._answers.readline())


def _all_draw(workers: list[DrawingProcess]) -> float:
    def draw() -> None:
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.end()

    return seconds_of(draw)


if __name__ == "__main__":
    work = drawing(n=4000)
    print("ready", flush=True)
    for _ in sys.stdin:
        work()
        print(private_megabytes(), flush=True)
