"""Requests wait here for the models, which run in one thread; those of one kind that wait together travel together.

    request → waiting (at most max_waiting, else 429) → batch (at most max_rows) → worker thread → answer

A batch is taken when the worker is free. Whoever has just been answered is likely to ask again, so the worker expects
as many requests as it answered and left waiting, and gathers them while they keep coming: at most `gather_seconds`, and
without a newcomer a tenth of the time that the last batch took. A single client never waits. A request that its sender
gave up, or that is out of time, leaves; if all of a batch have left, the draw loop is told and ends. One that fails
makes the others of its batch run again, each alone.

After QUIET_SECONDS without a request the worker calls `on_quiet`, once, and waits on: then the server gives back what
it has freed (`running.give_back_free_memory`). Nothing of a batch is kept once it is answered.

The models run in one thread because switching a network's attention, on which the engine rests, is global to it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.completer import Abandoned
from energylm.apps.serve.verb import ServeLimits
from energylm.errors import EnergyLMError

GAP_SECONDS, GAP_SHARE = 0.02, 0.1  # without a newcomer, after which a batch that gathers is closed: the larger one
LOOK_SECONDS = 0.25  # between two looks whether the client is still there
QUIET_SECONDS = 1.0  # without a request; long enough that a client who asks again and again never meets it
NEWEST_WEIGHT = 0.2  # of the last batch, in the running mean of a request's seconds

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)  # of histograms
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Handler = Callable[[list[Any], Callable[[], bool]], Sequence[Any]]  # payloads, is anybody waiting → answers


class ServeMetrics:
    """Counters and histograms in Prometheus' form, kept in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("energylm_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self.latency_seconds = Histogram(
            "energylm_request_seconds",
            "Time from request to answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "energylm_queue_seconds", "Time a request waited for the models.", buckets=SECONDS, registry=self.registry
        )
        self.batch_requests = Histogram(
            "energylm_batch_requests", "Requests that travelled together.", buckets=COUNTS, registry=self.registry
        )
        self.batch_rows = Histogram(
            "energylm_batch_rows", "Continuations or texts of a batch.", buckets=COUNTS, registry=self.registry
        )
        self.tokens = Counter(
            "energylm_completion_tokens", "Tokens of texts that were given out.", registry=self.registry
        )
        self.refused = Counter("energylm_queue_full", "Requests refused with 429.", registry=self.registry)
        self._depth = Gauge("energylm_queue_depth", "Requests that wait for the models.", registry=self.registry)

    def watch_queue(self, depth: Callable[[], float]) -> None:
        self._depth.set_function(depth)

    def text(self) -> bytes:
        return generate_latest(self.registry)


@dataclass(eq=False)
class QueuedRequest:
    kind: str
    payload: Any
    rows: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    arrived: float = field(default_factory=time.monotonic)
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    is_wanted: bool = True
    answer: Any = None

    def finish(self, answer: Any = None, error: BaseException | None = None) -> None:
        """Called by the worker; the future belongs to the event loop."""
        try:
            self.loop.call_soon_threadsafe(self._set, answer, error)
        except RuntimeError:  # the loop has been closed: nobody waits
            self.is_wanted = False

    def _set(self, answer: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(error)


class ModelQueue:
    """`handlers` name the kinds of work. The worker starts with the first request; it is who calls `on_quiet`, too."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        limits: ServeLimits,
        metrics: ServeMetrics,
        on_quiet: Callable[[], None] = lambda: None,
    ) -> None:
        self._handlers, self._limits, self._metrics, self._on_quiet = handlers, limits, metrics, on_quiet
        self._waiting: deque[QueuedRequest] = deque()
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None
        self._is_closing = False
        self._expected, self._gap_seconds = 1, GAP_SECONDS
        self.running = 0  # requests that the models are at
        self._seconds_a_request = 0.1
        metrics.watch_queue(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, kind: str, payload: Any, *, rows: int, has_left: Callable[[], Any]) -> QueuedRequest:
        """The request with its answer by `handlers[kind]`; `has_left` is an async function that tells whether the
        client is gone."""
        queued = self._enter(kind, payload, rows)
        deadline = queued.arrived + self._limits.request_seconds
        try:
            while not queued.future.done():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RefusedRequest(
                        504,
                        f"no answer within {self._limits.request_seconds:g} seconds; ask for less, or try again later",
                        code="timeout",
                    )
                await asyncio.wait({queued.future}, timeout=min(left, LOOK_SECONDS))
                if not queued.future.done() and await has_left():
                    raise RefusedRequest(499, "the client has left", code="client_left")
            queued.answer = queued.future.result()
            return queued
        finally:
            queued.is_wanted = False
            queued.future.cancel()

    def check_room(self) -> None:
        """An error where a request could not enter now."""
        if self._is_closing:
            raise RefusedRequest(503, "the server is shutting down", headers={"retry-after": "5"})
        if len(self._waiting) < self._limits.max_waiting:
            return
        self._metrics.refused.inc()
        seconds = max(1, round(self._seconds_a_request * len(self._waiting)))
        raise RefusedRequest(
            429,
            f"{self._limits.max_waiting} requests are waiting already; try again in {seconds} seconds",
            code="queue_full",
            headers={"retry-after": str(seconds)},
        )

    def _enter(self, kind: str, payload: Any, rows: int) -> QueuedRequest:
        loop = asyncio.get_running_loop()
        queued = QueuedRequest(kind, payload, rows, loop, loop.create_future())
        with self._changed:
            self.check_room()
            self._waiting.append(queued)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="energylm-models", daemon=True)
                self._worker.start()
            self._changed.notify_all()
        return queued

    def open(self) -> None:
        """Take requests, again if the queue has been closed; a new one is open."""
        self._is_closing = False

    async def close(self) -> None:
        """Take no more; return when what has been taken is answered."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.join)

    def _work(self) -> None:
        while batch := self._next_batch():
            self._process(batch)
            del batch  # its answers, and the candidates behind them, must not live until the next request

    def _process(self, batch: list[QueuedRequest]) -> None:
        begun = time.monotonic()
        for queued in batch:
            queued.queue_seconds = begun - queued.arrived
            self._metrics.queue_seconds.observe(queued.queue_seconds)
        self._metrics.batch_requests.observe(len(batch))
        self._metrics.batch_rows.observe(sum(queued.rows for queued in batch))
        self.running = len(batch)
        self._answer(batch, begun)
        self.running = 0  # of an abandoned batch, too
        seconds = time.monotonic() - begun
        self._gap_seconds = max(GAP_SECONDS, GAP_SHARE * seconds)
        self._seconds_a_request += NEWEST_WEIGHT * (seconds / len(batch) - self._seconds_a_request)

    def _next_batch(self) -> list[QueuedRequest]:
        """The next requests of one kind; none when the queue is closed and empty."""
        while True:
            if not self._has_work(within_seconds=QUIET_SECONDS):
                self._on_quiet()  # without the lock: requests may enter meanwhile
                self._has_work(within_seconds=None)
            with self._changed:
                if self._waiting and not self._is_closing:
                    self._gather()
                batch = self._take()
                if batch or self._is_closing:
                    return batch

    def _has_work(self, *, within_seconds: float | None) -> bool:
        """Wait for a request, or for the end, so long at most; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting) or self._is_closing, within_seconds)

    def _gather(self) -> None:
        """Wait for as many requests as are expected, while they keep coming."""
        end = time.monotonic() + self._limits.gather_seconds
        while len(self._waiting) < self._expected and not self._is_closing:
            seen, left = len(self._waiting), end - time.monotonic()
            if sum(queued.rows for queued in self._waiting) >= self._limits.max_batch_rows or left <= 0:
                return
            self._changed.wait(min(self._gap_seconds, left))
            if len(self._waiting) == seen:
                return

    def _take(self) -> list[QueuedRequest]:
        """The first request, and those of its kind behind it that fit; others keep their places."""
        wanted = [queued for queued in self._waiting if queued.is_wanted]
        batch: list[QueuedRequest] = []
        for queued in wanted:
            rows = sum(other.rows for other in batch) + queued.rows
            if not batch or (queued.kind == batch[0].kind and rows <= self._limits.max_batch_rows):
                batch.append(queued)
        taken = set(batch)
        self._waiting = deque(queued for queued in wanted if queued not in taken)
        return batch

    def _answer(self, batch: list[QueuedRequest], begun: float) -> None:
        try:
            answers = self._run(batch)
        except Abandoned:
            return
        except Exception as error:
            if len(batch) > 1 and isinstance(error, EnergyLMError):  # whose it is shows when each runs alone
                for queued in batch:
                    self._answer([queued], begun)
                return
            self.running -= len(batch)
            for queued in batch:
                queued.finish(error=error)
            return
        self._expected = len(batch) + self.waiting  # counted before anyone can ask again
        self.running -= len(batch)  # likewise: whoever has an answer sees no model at work for it
        for queued, answer in zip(batch, answers, strict=True):
            queued.model_seconds = time.monotonic() - begun
            queued.finish(answer)

    def _run(self, batch: list[QueuedRequest]) -> Sequence[Any]:
        return self._handlers[batch[0].kind](
            [queued.payload for queued in batch], lambda: any(queued.is_wanted for queued in batch)
        )
