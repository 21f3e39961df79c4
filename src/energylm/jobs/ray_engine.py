"""Blocks on a Ray cluster: a pool of actors, each with a copy of the model, and a bounded number of blocks under way.

Each worker has two blocks, one that it does and one that waits, so that it never waits for the driver. A block that
is far ahead of the oldest unfinished one is not begun (back-pressure): neither blocks nor results pile up. When a
worker, or the machine under it, is lost, its blocks go to the others at once and a new worker is asked for; a block
that takes its worker down again and again ends the run.

Why not Ray Data's actor pool: it restarts a lost actor and retries the task *on it*, so that blocks of a machine that
does not come back wait for as long as the cluster has no room for the restart, while other workers are idle; and it
wants all blocks beforehand, where texts may come from a pipe.

Relations  `engine` says what workers and pools are, and imports this where Ray is installed.
"""

import heapq
import logging
import os
import socket
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from energylm.bundles.model_folder import weights_sha256
from energylm.config.environment import EngineConfig
from energylm.errors import ConfigError, EnergyLMError, ModelError, WorkerLost, extra
from energylm.jobs.engine import Load, Pool, Worker
from energylm.progress import Counter, Progress, collected, say
from energylm.waiting import adapt_waiting, keep_memory

with extra("ray"):
    import ray
    import ray.exceptions as lost

IN_HAND = 2  # blocks of a worker: the one it does, and the next
AHEAD = 4  # blocks a worker, from the oldest unfinished one to the newest that is begun
MAX_LOSSES = 3  # of one block, or of workers that never came to load the model
PATIENCE_SECONDS = 20.0  # before it is said that the cluster has no room
LOST = (
    lost.RayActorError,
    lost.ObjectLostError,
    lost.WorkerCrashedError,
    lost.NodeDiedError,
    lost.OutOfMemoryError,
)
OBJECT_STORE_BYTES = 512 << 20  # of a Ray of our own: blocks and results are small, and only a few are under way
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_worker_niceness": "0",  # workers of a Ray of our own have the priority of the command
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps its environment; Ray warns otherwise
}


@contextmanager
def connected(config: EngineConfig) -> Iterator[None]:
    """This process as a driver of the cluster at `--address` or RAY_ADDRESS, or else of one on this machine for this
    run alone; a connection that is there already is used and left as it is."""
    if ray.is_initialized():
        yield
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = config.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            processors = max(os.cpu_count() or 1, (config.workers or 1) * _threads(config))
            own: dict[str, Any] = {
                "num_cpus": processors,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
            ray.init("local", **own, **quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:  # Ray has no family for what can go wrong here
        reason = " ".join(str(error).split())
        where = f"at {address!r}" if address else "on this machine"
        raise ConfigError(
            f"no Ray cluster {where} ({reason:.160}); start one with `ray start --head`, or leave --address out"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Started:
    location: str  # the worker's process and machine, in words
    node: str  # Ray's name of the machine
    facts: Mapping[str, Any]
    messages: list[str]


@dataclass(frozen=True)
class Finished:
    result: Any
    advanced: float
    messages: list[str]


class Actor:
    """A worker in a process of its own, with its copy of the model. Loading is a task and not the constructor, so that
    its errors arrive whole. What it says, and how far it came, travels with its results to the person at the driver."""

    def __init__(self, load: Load, *, threads: int, weights: Mapping[str, str], home: str) -> None:
        self._load, self._threads, self._weights, self._home = load, threads, weights, home
        self._worker: Worker | None = None

    def start(self) -> Started:
        torch.set_num_threads(self._threads)
        keep_memory()
        if self._threads > 1:
            adapt_waiting()
        with collected() as messages, self._errors_say_where():
            for path, sha256 in self._weights.items():
                if weights_sha256(path) != sha256:
                    raise ModelError(f"{path} holds other weights than where the run was started; copy them again")
            self._worker = self._load()
        location = f"process {os.getpid()} on {socket.gethostname()}"
        return Started(location, ray.get_runtime_context().get_node_id(), self._worker.facts(), messages)

    def work(self, block: Any) -> Finished:
        counter = Counter()
        assert self._worker is not None
        with collected() as messages, self._errors_say_where():
            result = self._worker(block, progress=counter)
        return Finished(result, counter.done, messages)

    @contextmanager
    def _errors_say_where(self) -> Iterator[None]:
        """A folder may be missing on one machine only."""
        try:
            yield
        except EnergyLMError as error:
            here = socket.gethostname()
            raise error if here == self._home else type(error)(f"{error} (on {here})") from None


class RayEngine:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    @contextmanager
    def pool(self, load: Load, *, models: Sequence[str] = ()) -> Iterator[Pool]:
        pool = RayPool(load, self._config, weights={path: weights_sha256(path) for path in models})
        try:
            yield pool
        finally:
            pool.close()


@dataclass(eq=False)
class _Hand:
    """A worker as the driver knows it: its actor, and its blocks, the oldest of which it is doing."""

    actor: Any
    location: str = "just started"
    node: str = ""
    blocks: deque[int] = field(default_factory=deque)


class RayPool:
    def __init__(self, load: Load, config: EngineConfig, *, weights: Mapping[str, str]) -> None:
        threads = _threads(config)
        self.size = config.workers or _room(threads, config.gpus_per_worker)
        self.ready: list[_Hand] = []
        self.starting: dict[Any, _Hand] = {}
        options = {"num_cpus": threads, "num_gpus": config.gpus_per_worker, "scheduling_strategy": "SPREAD"}
        actors = ray.remote(Actor).options(max_restarts=0, **options)
        self._new_actor = partial(
            actors.remote, load, threads=threads, weights=dict(weights), home=socket.gethostname()
        )
        self._needs = f"{threads} CPUs" + (f" and {config.gpus_per_worker:g} GPUs" if config.gpus_per_worker else "")
        self._facts: Mapping[str, Any] | None = None
        self._failed_starts = 0
        self._said: set[str] = set()

    def facts(self) -> Mapping[str, Any]:
        while self._facts is None:
            self.grow(to=1)
            for reference in self.wait(()):
                self.greet(reference)
        return self._facts

    def run(self, blocks: Iterable[Any], *, progress: Progress) -> Iterator[Any]:
        yield from _Run(self, blocks, progress)

    def close(self) -> None:
        for hand in (*self.ready, *self.starting.values()):
            ray.kill(hand.actor)
        self.ready, self.starting = [], {}

    def grow(self, *, to: int) -> None:
        """Ask for workers until there are so many, ready or not, but never more than the pool's size."""
        while len(self.ready) + len(self.starting) < min(to, self.size):
            hand = _Hand(self._new_actor())
            self.starting[hand.actor.start.remote()] = hand

    def wait(self, running: Iterable[Any]) -> list[Any]:
        """References of blocks or of new workers that are finished, one way or another."""
        references = [*running, *self.starting]
        finished, _ = ray.wait(references, num_returns=1, timeout=PATIENCE_SECONDS)
        if not finished and not self.ready:
            free, total = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
            self.say(
                f"energylm: waiting for a worker, which needs {self._needs}; {free:g} of the cluster's {total:g} CPUs "
                "are free"
            )
        return finished

    def greet(self, reference: Any) -> None:
        """A worker that has loaded its model is ready; one that was lost on the way is forgotten."""
        hand = self.starting.pop(reference)
        try:
            started: Started = _result(reference)
        except LOST as error:
            self._failed_starts += 1
            if self._failed_starts > MAX_LOSSES:
                raise WorkerLost(
                    f"{self._failed_starts} workers were lost while they loaded the model, the last one so: "
                    f"{_one_line(error)}; give them more memory (fewer workers on a machine)"
                ) from None
            return
        self._failed_starts = 0
        hand.location, hand.node, self._facts = started.location, started.node, started.facts
        self.ready.append(hand)
        for message in started.messages:
            self.say(message)

    def bury(self, hand: _Hand, error: Exception) -> None:
        self.ready.remove(hand)
        ray.kill(hand.actor)  # it may live on behind a broken line
        say(f"energylm: lost a worker ({hand.location}): {_one_line(error)}; its blocks are done again")

    def say(self, message: str) -> None:
        """Every worker would say the same: once is enough."""
        if message not in self._said:
            self._said.add(message)
            say(message)


class _Run:
    """Blocks under way, from the oldest unfinished one on."""

    def __init__(self, pool: RayPool, blocks: Iterable[Any], progress: Progress) -> None:
        self._pool, self._progress = pool, progress
        self._source = enumerate(blocks)
        self._blocks: dict[int, Any] = {}  # all that are not finished
        self._waiting: list[int] = []  # a heap: a lost block is the oldest, so it goes first
        self._running: dict[Any, tuple[_Hand, int]] = {}
        self._results: dict[int, Any] = {}
        self._losses: Tally[int] = Tally()
        self._oldest = self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._hand_out()
            if self._oldest in self._results:
                self._oldest += 1
                yield self._results.pop(self._oldest - 1)
            elif not self._blocks:
                return
            else:
                self._take_in()

    def _hand_out(self) -> None:
        """As much as there is room for: blocks from the source, workers for them, and blocks to workers."""
        pool = self._pool
        while self._taken < self._oldest + AHEAD * pool.size and (following := next(self._source, None)):
            number, self._blocks[number] = following
            heapq.heappush(self._waiting, number)
            self._taken += 1
        pool.grow(to=len(self._blocks))
        while self._waiting and pool.ready:
            hand = min(pool.ready, key=lambda hand: len(hand.blocks))
            if len(hand.blocks) >= IN_HAND:
                return
            number = heapq.heappop(self._waiting)
            hand.blocks.append(number)
            self._running[hand.actor.work.remote(self._blocks[number])] = (hand, number)

    def _take_in(self) -> None:
        for reference in self._pool.wait(self._running):
            if reference in self._pool.starting:
                self._pool.greet(reference)
            elif reference in self._running:  # not one of a worker that was buried a moment ago
                self._finish(reference)

    def _finish(self, reference: Any) -> None:
        hand, number = self._running[reference]
        try:
            finished: Finished = _result(reference)
        except LOST as error:
            self._lose(hand, error)
            return
        del self._running[reference], self._blocks[number]
        hand.blocks.remove(number)
        self._results[number] = finished.result
        machines = len({hand.node for hand in self._pool.ready})
        self._progress.advance(finished.advanced, note=f"{len(self._pool.ready)} workers on {machines} machines")
        for message in finished.messages:
            self._pool.say(message)

    def _lose(self, hand: _Hand, error: Exception) -> None:
        self._pool.bury(hand, error)
        self._losses[hand.blocks[0]] += 1
        if self._losses[hand.blocks[0]] > MAX_LOSSES:
            raise WorkerLost(
                f"block {hand.blocks[0]} took its worker down {self._losses[hand.blocks[0]]} times, the last time so: "
                f"{_one_line(error)}; give workers more memory, or make blocks smaller"
            ) from None
        for number in hand.blocks:
            heapq.heappush(self._waiting, number)
        self._running = {reference: held for reference, held in self._running.items() if held[0] is not hand}


def _threads(config: EngineConfig) -> int:
    return config.threads_per_worker or 1


def _result(reference: Any) -> Any:
    """What a task returned. An error of ours is raised as itself; any other with what Ray tells of it."""
    try:
        return ray.get(reference)
    except lost.RayTaskError as error:
        if isinstance(error.cause, EnergyLMError):
            raise error.cause from None
        raise


def _room(threads: int, gpus: float) -> int:
    """Workers that the cluster has room for."""
    resources = ray.cluster_resources()
    fit = [int(resources.get("CPU", 0) // threads)]
    if gpus:
        fit.append(int(resources.get("GPU", 0) // gpus))
    return max(1, min(fit))


def _one_line(error: Exception) -> str:
    """The first line of what Ray says; the rest are its own names for things."""
    return f"{str(error).strip().splitlines()[0]:.160}"
