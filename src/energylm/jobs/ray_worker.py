"""What runs on a Ray cluster: a worker with its copy of the model, and what it sends back.

What a worker says and how far it came travels with its result, so that the person at the driver sees it.

Relations  `ray_engine` is the driver's side.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import torch

from energylm.bundles.weights_identity import weights_sha256
from energylm.errors import EnergyLMError, ModelError
from energylm.jobs.engine import Load, Worker
from energylm.progress import Counter, collected


@dataclass(frozen=True)
class Started:
    place: str  # the worker's process and machine, in words
    node: str  # Ray's name of the machine
    facts: Mapping[str, Any]
    messages: list[str]


@dataclass(frozen=True)
class Finished:
    found: Any
    advanced: float
    messages: list[str]


class Actor:
    """A worker in a process of its own. Loading is a task and not the constructor, so that its errors arrive whole."""

    def __init__(self, load: Load, *, threads: int, weights: Mapping[str, str], home: str) -> None:
        self._load, self._threads, self._weights, self._home = load, threads, weights, home
        self._worker: Worker | None = None

    def start(self) -> Started:
        torch.set_num_threads(self._threads)
        with collected() as messages, self._errors_say_where():
            for place, sha256 in self._weights.items():
                if weights_sha256(place) != sha256:
                    raise ModelError(f"{place} holds other weights than where the run was started; copy them again")
            self._worker = self._load()
        place = f"process {os.getpid()} on {socket.gethostname()}"
        return Started(place, ray.get_runtime_context().get_node_id(), self._worker.facts(), messages)

    def work(self, block: Any) -> Finished:
        counter = Counter()
        assert self._worker is not None
        with collected() as messages, self._errors_say_where():
            found = self._worker(block, progress=counter)
        return Finished(found, counter.done, messages)

    @contextmanager
    def _errors_say_where(self) -> Iterator[None]:
        """A folder may be missing on one machine only."""
        try:
            yield
        except EnergyLMError as error:
            here = socket.gethostname()
            raise error if here == self._home else type(error)(f"{error} (on {here})") from None
