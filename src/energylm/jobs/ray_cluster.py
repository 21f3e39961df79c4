"""The way to a Ray cluster: the one at `--address` or RAY_ADDRESS, or else one on this machine for this run alone."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energylm.config.engine import EngineConfig
from energylm.errors import ConfigError

EXTRA = "pip install 'energylm[ray]'"
OBJECT_STORE_BYTES = 512 << 20  # of a Ray of our own: blocks and results are small, and only a few are under way
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_worker_niceness": "0",  # workers of a Ray of our own have the priority of the command
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps its environment; Ray warns otherwise
}


def threads_of(config: EngineConfig) -> int:
    return config.threads_per_worker or 1


@contextmanager
def connected(config: EngineConfig) -> Iterator[None]:
    """This process as a driver of the cluster; a connection that is there already is used and left as it is."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"--engine ray needs Ray, which is not installed; run: {EXTRA}") from None
    if ray.is_initialized():
        yield
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = config.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            processors = max(os.cpu_count() or 1, (config.workers or 1) * threads_of(config))
            ray.init(
                "local",
                num_cpus=processors,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
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
