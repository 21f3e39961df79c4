"""Work cut into blocks, done by a loaded model: one copy here, or many on a Ray cluster. Results come in order.

A *worker* is a loaded model that does a block. `load` makes one from settings; it is a function that can be pickled
(`partial(NegativesWorker, …)`), since on a cluster every copy is made where it works. What a worker finds depends on
the block alone, so neither the engine nor the number of copies changes a result; equal bits also need equal threads.

    with open_engine(config) as engine, engine.pool(load) as pool:
        for result in pool.run(blocks, progress=bar): …

Relations  `ray_engine` is the cluster's; `kept_blocks` keeps results on disk, so that a killed run goes on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol

import torch

from energylm.config.environment import LOCAL, EngineConfig
from energylm.errors import extra
from energylm.progress import Progress


class Worker(Protocol):
    """A loaded model, and one kind of block that it does."""

    def facts(self) -> Mapping[str, Any]:
        """What a report must know of the model: its name, the convention of its numbers."""
        ...

    def __call__(self, block: Any, *, progress: Progress) -> Any:
        """What comes of a block; `progress` is advanced on the way."""
        ...


Load = Callable[[], Worker]


class Pool(Protocol):
    """Copies of one worker."""

    def facts(self) -> Mapping[str, Any]:
        """The worker's; loads the first copy, so what is wrong with a model is said here."""
        ...

    def run(self, blocks: Iterable[Any], *, progress: Progress) -> Iterator[Any]:
        """What comes of each block, in the order of blocks, which are taken only as they are needed."""
        ...


class Engine(Protocol):
    def pool(self, load: Load, *, models: Sequence[str] = ()) -> AbstractContextManager[Pool]:
        """Copies of what `load` makes. `models` are the paths of the weights that it reads: another machine must have
        the same ones there."""
        ...


@contextmanager
def open_engine(config: EngineConfig) -> Iterator[Engine]:
    """The engine that `config` names, for as long as it is needed."""
    if config.engine == LOCAL:
        with _threads(config.threads_per_worker):
            yield LocalEngine()
        return
    with extra("ray"):
        from energylm.jobs.ray_engine import RayEngine, connected

    with connected(config):
        yield RayEngine(config)


class LocalEngine:
    """One copy, in this process."""

    def pool(self, load: Load, *, models: Sequence[str] = ()) -> AbstractContextManager[Pool]:
        return nullcontext(LocalPool(load))


class LocalPool:
    def __init__(self, load: Load) -> None:
        self._load = load

    @cached_property
    def _worker(self) -> Worker:
        return self._load()

    def facts(self) -> Mapping[str, Any]:
        return self._worker.facts()

    def run(self, blocks: Iterable[Any], *, progress: Progress) -> Iterator[Any]:
        for block in blocks:
            yield self._worker(block, progress=progress)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
