"""The rate beside another busy process: threads as `waiting` lets them wait, against settings that one could choose.

Contenders are processes of their own, since OpenMP reads its settings once: *adapting* (what every command does),
*spinning* (as torch comes), *sleeping* (OMP_WAIT_POLICY=PASSIVE) and *single* (one thread). Each draws 64 continuations
of 127 tokens by SmolLM2-135M and makes training steps of a language model of 4 × 256, on a machine that does nothing
else, and beside one process that computes without end. Adapting is measured from a second after the work began, when it
has had its time; a command that meets another process is slow for as long.

The bars: beside the other process at least 60 % of the rate without it, and within 5 % of whichever setting is best
there, and of whichever is best without it. All of it means something only where nothing else runs.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, Rounds, interleaved
from energylm.errors import ModelError

MODEL = "smollm2-135m"
N, CONTEXT, NEW, TOP_K = 64, 127, 6, 10
TRAINING_SECONDS, SETTLING_SECONDS = 1.5, 1.0
ADAPTING = "adapting"
SETTINGS: dict[str, dict[str, str]] = {
    ADAPTING: {},
    "spinning": {},
    "sleeping": {"OMP_WAIT_POLICY": "PASSIVE"},
    "single": {"OMP_NUM_THREADS": "1"},
}
WORKS = {"drawing": "tokens/s", "training": "steps/s"}
SHARE, NEAR_BEST = 0.6, 0.95


def run(options: Options) -> BenchmarkResult:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(SettingProcess(name, quick=options.quick)) for name in SETTINGS}
        contenders: dict[str, Callable[[], float]] = {}
        for work in WORKS:
            for name, worker in workers.items():
                contenders[f"{work}, {name}"] = partial(worker.rate, work)
                contenders[f"{work}, {name}, beside"] = partial(_beside_another, partial(worker.rate, work))
        rate = interleaved(contenders, options, unit="tokens/s and steps/s")
    return BenchmarkResult(
        "busy",
        bars=[bar for work in WORKS for bar in _bars(work, rate)],
        details={f"{what} [{WORKS[what.partition(',')[0]]}]": value for what, value in rate.items()},
    )


def _bars(work: str, rate: Mapping[str, Rounds]) -> Iterator[Bar]:
    alone, beside = rate[f"{work}, {ADAPTING}"], rate[f"{work}, {ADAPTING}, beside"]
    yield Bar.on(f"{work} beside a busy process, over the rate without", beside / alone, SHARE)
    for situation, ours in (("", alone), (", beside", beside)):
        others = {name: rate[f"{work}, {name}{situation}"] for name in SETTINGS if name != ADAPTING}
        best = max(others, key=lambda name: others[name].median)
        where = "beside a busy process" if situation else "on a free machine"
        yield Bar.on(f"{work} {where}, over the best setting ({best})", ours / others[best], NEAR_BEST)


def _beside_another(measure: Callable[[], float]) -> float:
    with busy_process():
        return measure()


@contextmanager
def busy_process() -> Iterator[None]:
    """One that computes without end, on one thread."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class SettingProcess:
    """A process with one of the settings: the name of a work in, its rate out."""

    def __init__(self, setting: str, *, quick: bool) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        command = [sys.executable, "-m", __name__, setting, "quick" if quick else "usual"]
        pipe, environment = subprocess.PIPE, plain | SETTINGS[setting]
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout

    def __enter__(self) -> "SettingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._answers.close()
        self._process.wait()

    def rate(self, work: str) -> float:
        self._requests.write(work + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        if not answer:
            raise ModelError("a process of bench busy has ended; what it said stands above")
        return float(answer)


def _serve(setting: str, *, quick: bool) -> None:
    """The process itself."""
    if setting == ADAPTING:
        from energylm.waiting import adapt_waiting

        adapt_waiting()
    works: dict[str, Callable[[float], float]] = {"drawing": _drawing(quick=quick), "training": _training(quick=quick)}
    settling = SETTLING_SECONDS if setting == ADAPTING and not quick else 0.0
    for line in sys.stdin:
        print(works[line.strip()](settling), flush=True)


def _drawing(*, quick: bool) -> Callable[[float], float]:
    """Tokens a second of one call, after calls for so many seconds."""
    from energylm.benchmarks.inputs import gpt2, nbest_texts, tokenizer_for
    from energylm.bundles.known_models import KNOWN_MODELS
    from energylm.bundles.language_model import LanguageModel

    if quick:
        tokenizer = tokenizer_for([text for texts in nbest_texts(8).texts for text in texts])
        shape = {"layers": 1, "width": 32, "heads": 2, "positions": CONTEXT + NEW}
        lm = LanguageModel(gpt2(**shape, vocabulary_size=len(tokenizer)), tokenizer)
    elif KNOWN_MODELS[MODEL].folder.is_dir():
        lm = LanguageModel.from_pretrained(MODEL)
    else:
        raise ModelError(f"bench busy draws with {MODEL}; fetch it with `energylm models get {MODEL}`, or use --quick")
    context = list(range(5, 5 + CONTEXT))

    def rate(new: int) -> float:
        start = time.perf_counter()
        lm.sample(context, n=N, top_k=TOP_K, max_new_tokens=new, stop_at_eos=False)
        return N * new / (time.perf_counter() - start)

    def settled(seconds: float) -> float:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            rate(1)
        return rate(NEW)

    return settled


def _training(*, quick: bool) -> Callable[[float], float]:
    """Updates a second over some time, after updates for so many seconds."""
    from energylm.benchmarks.train import make_update

    update = make_update(quick=quick)

    def count(seconds: float) -> float:
        start, done = time.perf_counter(), 0
        while not done or time.perf_counter() - start < seconds:
            update()
            done += 1
        return done / (time.perf_counter() - start)

    def settled(seconds: float) -> float:
        count(seconds)
        return count(0.0 if quick else TRAINING_SECONDS)

    return settled


if __name__ == "__main__":
    _serve(sys.argv[1], quick=sys.argv[2] == "quick")
