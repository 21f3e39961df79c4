"""`energylm serve` itself: load, listen, answer, and leave in order.

Without keys the server listens on this machine only, and answers only who addresses it by a name of this machine; to
open it to others without keys must be said openly. On SIGTERM or Ctrl-C it takes no new requests, answers those that it
has, and leaves with exit code 0.
"""

import ipaddress
import os
import signal
import socket
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from energylm.config.serve import ServeConfig
from energylm.errors import ConfigError
from energylm.pipelines.serve import load_services
from energylm.progress import say
from energylm.web.serve_app import create_app
from energylm.web.serve_keys import ApiKeys
from energylm.web.serve_upstream import Upstream

UPSTREAM_KEY = "ENERGYLM_UPSTREAM_KEY"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def run_server(
    config: ServeConfig, *, host: str, port: int, keys_file: Path | None = None, insecure: bool = False
) -> None:
    """Serve until told to stop."""
    keys = ApiKeys.load(keys_file)
    check_binding(host, has_keys=bool(keys), insecure=insecure)
    listener = bound_socket(host, port)
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
    shown = f"[{host}]" if ":" in host else host
    say(f"energylm: serving at http://{shown}:{listener.getsockname()[1]}{'' if keys else ', without keys'}")
    listen(app, listener)
    say("energylm: stopped, every request answered")


def listen(app: FastAPI, listener: socket.socket) -> None:
    """Answer until SIGTERM or Ctrl-C, then answer what has been taken, and return."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after it has shut down in order
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_keep_alive=15, lifespan="on", ws="none"
    )
    uvicorn.Server(settings).run(sockets=[listener])


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


def bound_socket(host: str, port: int) -> socket.socket:
    """Bound before the models are loaded, so that a port in use is told at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from None
