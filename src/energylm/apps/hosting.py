"""What the applications share: a server that runs until it is told to stop, and the files that their pages are made of.

The server writes no line about a request: addresses hold tokens. The port is taken before models are loaded or anything
is said about it, so that a taken one is the user's one line and port 0 has a number. SIGINT and SIGTERM end it: no new
requests, those under way are answered. What the models free stays with the process, because glibc keeps it for the next
request; how much is left after a batch is a matter of luck (at times 100 MB more than at others).
`give_back_free_memory` returns it while nobody asks.

Pages are templates that escape whatever they show, style sheets and scripts by a fixed list. An application has folders
`templates` and `static` of its own; those beside this file are everybody's. A static file is read once and served from
memory under its name alone, so no request reaches the file system. Pages name it with a hash of its content
(`asset("base.css")` in a template): browsers may keep it and still see a new one.
"""

import ctypes
import hashlib
import signal
import socket
from functools import cache
from importlib import resources
from typing import Any

from fastapi import APIRouter, HTTPException
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from energylm.errors import ConfigError

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
KEEP_SECONDS = 86_400
SHARED = "energylm.apps"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Its connections send at once: otherwise the body of an
    answer waits 40 ms until its headers are acknowledged, and asyncio sees to that on sockets of its own only."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
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


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of options in glibc's malloc.h
# Blocks from the first on are mapped one by one, others cut from a heap, whose free end is returned beyond the second.
# Both are the largest values that glibc itself goes to as large blocks are freed (mallopt(3)); whoever sets one of them
# stops that, and smaller ones would let tensors that come again at every token be returned at every token.
MMAP_BYTES, TRIM_BYTES = 32 << 20, 64 << 20
BLOCK_BYTES = 100_000  # cut from a heap always, and large enough (2 ** 16) for `free` to look at the heap's end


def give_back_free_memory() -> None:
    """Return what this process has freed to the operating system; nothing happens where the C library is not glibc.

    `malloc_trim` returns the free pages inside all heaps, but of their free ends (up to 64 MB) the main thread's only.
    The calling thread's goes with the next `free` of a large block while the threshold is 0."""
    glibc = _glibc()
    if glibc is None:
        return
    glibc.malloc_trim(0)
    glibc.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    glibc.mallopt(M_TRIM_THRESHOLD, 0)
    glibc.free(glibc.malloc(BLOCK_BYTES))
    glibc.mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)


@cache
def _glibc() -> Any:
    """The C library, where it can trim."""
    try:
        library = ctypes.CDLL(None)
        library.malloc_trim.argtypes, library.malloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t]
        library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    except (AttributeError, OSError, TypeError):
        return None
    return library


class Pages:
    """The pages of the application in `package`, e.g. "energylm.apps.study"."""

    def __init__(self, package: str) -> None:
        packages = (package, SHARED)
        self.static_files = {  # name → (content, kind)
            name: content for of in reversed(packages) for name, content in _static_files(of).items()
        }
        self._environment = Environment(
            loader=ChoiceLoader([PackageLoader(of) for of in packages]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._environment.globals["asset"] = self._address

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """The template with these values; every value is escaped."""
        return HTMLResponse(self._environment.get_template(template).render(values), status_code=status)

    def static_router(self) -> APIRouter:
        router = APIRouter()

        @router.get("/static/{name}", include_in_schema=False)
        def static_file(name: str) -> Response:
            if name not in self.static_files:
                raise HTTPException(404, "no such file")
            content, kind = self.static_files[name]
            return Response(content, media_type=kind, headers={"cache-control": f"public, max-age={KEEP_SECONDS}"})

        return router

    def _address(self, name: str) -> str:
        return f"/static/{name}?v={hashlib.sha256(self.static_files[name][0]).hexdigest()[:12]}"


@cache
def pages_of(package: str) -> Pages:
    return Pages(package)


def _static_files(package: str) -> dict[str, tuple[bytes, str]]:
    folder = resources.files(package) / "static"
    kinds = {file.name: KINDS.get("." + file.name.rpartition(".")[2]) for file in folder.iterdir()}
    return {name: ((folder / name).read_bytes(), kind) for name, kind in kinds.items() if kind}
