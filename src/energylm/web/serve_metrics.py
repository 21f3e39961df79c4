"""Counters and histograms of `energylm serve` in Prometheus' form, kept in a registry of their own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServeMetrics:
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
