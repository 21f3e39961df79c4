"""`energylm serve` itself: load, listen, answer, and leave in order.

Without keys the server listens on this machine only, and answers only who addresses it by a name of this machine; to
open it to others without keys must be said openly. On SIGTERM or Ctrl-C it takes no new requests, answers those that it
has, and leaves with exit code 0.
"""

import ipaddress
import os
from pathlib import Path

from energylm.apps import running
from energylm.apps.serve.app import create_app
from energylm.apps.serve.keys import ApiKeys
from energylm.apps.serve.services import load_services
from energylm.apps.serve.upstream import Upstream
from energylm.apps.serve.verb import ServeConfig
from energylm.errors import ConfigError
from energylm.progress import say

UPSTREAM_KEY = "ENERGYLM_UPSTREAM_KEY"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def run_server(
    config: ServeConfig, *, host: str, port: int, keys_file: Path | None = None, insecure: bool = False
) -> None:
    """Serve until told to stop."""
    keys = ApiKeys.load(keys_file)
    check_binding(host, has_keys=bool(keys), insecure=insecure)
    listening = running.listen(host, port)
    upstream = None
    if config.upstream is not None:
        upstream = Upstream(
            config.upstream,
            model=config.upstream_model,
            key=os.environ.pop(UPSTREAM_KEY, None),
            n=config.upstream_n,
            seconds=config.limits.request_seconds,
            at_once=config.limits.max_waiting,
        )
    app = create_app(
        load_services(config),
        config.limits,
        keys,
        upstream=upstream,
        hosts=None if keys or insecure else (*LOOPBACK_NAMES, host),
    )
    say(f"energylm: serving at {running.address_of(listening)}{'' if keys else ', without keys'}")
    running.run(app, listening)
    say("energylm: stopped, every request answered")


def check_binding(host: str, *, has_keys: bool, insecure: bool) -> None:
    """An error where strangers could reach a server that has no keys."""
    if has_keys or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"--host {host} is open to other machines but there are no keys: give --keys FILE (made with --add-key), or "
        "say --insecure-no-keys"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
