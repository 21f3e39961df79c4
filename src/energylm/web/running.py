"""Run an application until it is told to stop. The server writes no line about a request: addresses hold tokens.

The port is taken before models are loaded or anything is said about it, so that a taken one is the user's one line and
port 0 has a number. SIGINT and SIGTERM end it: no new requests, those under way are answered.
"""

import signal
import socket
from typing import Any

from energylm.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another --host or --port") from None


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: Any, listening: socket.socket, *, grace_seconds: int | None = None) -> None:
    """Serve until a signal comes; then wait for what is under way, `grace_seconds` at most."""
    import uvicorn

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after it has shut down in order
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=grace_seconds,
    )
    uvicorn.Server(config).run(sockets=[listening])
