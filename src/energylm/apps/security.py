"""What every web face of energylm shares: tokens, keys, headers, limits of what comes in, and errors in one line.

Tokens are random, at least 128 bits long and known to the server as SHA-256 digests only: a plain hash is enough for
something that nobody can guess, and comparing digests takes the same time whatever they are. API keys are such tokens,
in a file of digests or in the environment, where they are hashed at once:

    # keys file, one a line; what follows the digest is a note
    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 laboratory

Bodies are read whole before the application sees them, up to a limit, within a time, and not nested too deeply. Every
answer that is no page is JSON in which <, > and & are written as escapes, so that what a browser takes for a page by
mistake holds no tag. Errors have OpenAI's form: {"error": {"message", "type", "param", "code"}}.

Relations  both applications are built on this.
"""

import asyncio
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from energylm.errors import BusyError, ConfigError, DiskFull, EnergyLMError

TOKEN_BYTES = 24  # 192 bits
SHOWN_CHARACTERS = 200  # of what a client named wrongly
KEYS_VARIABLE = "ENERGYLM_API_KEYS"
SHORTEST_KEY = 20  # characters; a shorter one might be guessed, and a plain hash would not protect it

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",  # links hold tokens
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

# A string, or what is left of one that never ends; possessive, so that no input makes it look twice.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
# How pydantic names the branches of a union in the location of an error: nothing that a client knows of.
_TYPE_TAG = re.compile(r"(constrained-|list\[|dict\[|literal\[|tuple\[)|(str|int|float|bool|none)$")
_KEY_LINE = re.compile(r"sha256:([0-9a-f]{64})(\s.*)?")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def token_matches(token: str, digest: str) -> bool:
    """Whether `digest` is `token`'s, in a time that does not tell how much of it is."""
    return hmac.compare_digest(hash_token(token).encode(), digest.encode())


class ApiKeys:
    """The digests of the keys that are allowed; none: everyone is."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._digests = tuple(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def load(cls, file: Path | None) -> Self:
        """Keys of the file, and those of the environment, from which they are removed."""
        return cls([*([] if file is None else _keys_of_file(file)), *_keys_of_environment()])

    def allow(self, authorization: str | None) -> bool:
        """Whether the header holds one of the keys. Every digest is compared, so time tells nothing."""
        scheme, _, key = (authorization or "").partition(" ")
        matches = [token_matches(key.strip(), digest) for digest in self._digests]
        return not self._digests or (scheme.lower() == "bearer" and any(matches))


def add_key(file: Path, *, note: str = "") -> str:
    """A new key, whose digest is appended to `file`; the key itself is kept nowhere."""
    key = new_token()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as out:
        out.write(f"sha256:{hash_token(key)} {' '.join(note.split())}".rstrip() + "\n")
    return key


def _keys_of_file(file: Path) -> list[str]:
    digests = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        digest = _KEY_LINE.fullmatch(text)
        if digest is None:
            raise ConfigError(
                f"{file} line {number} is no digest of the form sha256:<64 hexadecimal digits>; "
                "make keys with --add-key"
            )
        digests.append(digest[1])
    if not digests:
        raise ConfigError(f"{file} holds no key, so nobody could ask; make one with --add-key")
    return digests


def _keys_of_environment() -> list[str]:
    keys = [key.strip() for key in os.environ.pop(KEYS_VARIABLE, "").split(",") if key.strip()]
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise ConfigError(f"a key in {KEYS_VARIABLE} has fewer than {SHORTEST_KEY} characters; take a random one")
    return [hash_token(key) for key in keys]


class SafeJSON(JSONResponse):
    """JSON without a raw <, > or &."""

    def render(self, content: Any) -> bytes:
        return safe_json(content).encode()


def safe_json(value: Any) -> str:
    """`value` as JSON of ASCII characters, without a raw <, > or &; NaN and infinities are refused."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class RefusedRequest(Exception):
    """A request that gets `status` and one line of why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    def answer(self) -> Response:
        """As OpenAI-style clients read an error; the message becomes one line."""
        message, kind = " ".join(str(self).split()), _error_type(self.status)
        body = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return SafeJSON({"error": body}, status_code=self.status, headers=self.headers)


def _error_type(status: int) -> str:
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error"
    )


def add_error_handlers(app: FastAPI) -> None:
    """Everything that goes wrong becomes one line; of a failure of ours the client learns no more than that."""

    async def refused(_: Request, error: RefusedRequest) -> Response:
        return error.answer()

    async def energylm_error(_: Request, error: EnergyLMError) -> Response:
        status = {BusyError: 409, DiskFull: 507}.get(type(error), 400 if error.exit_code == 2 else 500)
        return RefusedRequest(status, str(error)).answer()

    async def invalid(_: Request, error: RequestValidationError) -> Response:
        problems = error.errors()
        # Of a union's branches the one that got farthest.
        worst = max(problems, key=lambda problem: len(problem["loc"]))
        param, message = _explained(worst)
        return RefusedRequest(400, message, param=param, code=str(worst["type"])).answer()

    async def http_error(_: Request, error: HTTPException) -> Response:
        return RefusedRequest(error.status_code, str(error.detail), headers=error.headers).answer()

    async def failure(_: Request, __: Exception) -> Response:
        # Outside of all middleware, so that the headers are set here.
        message = "something went wrong in the server; its log says what"
        return RefusedRequest(500, message, headers=SECURITY_HEADERS).answer()

    app.exception_handler(RefusedRequest)(refused)
    app.exception_handler(EnergyLMError)(energylm_error)
    app.exception_handler(RequestValidationError)(invalid)
    app.exception_handler(HTTPException)(http_error)
    app.exception_handler(Exception)(failure)


def _explained(problem: Mapping[str, Any]) -> tuple[str | None, str]:
    """The parameter that is wrong, and what is wrong with it; what came is not repeated."""
    location = [str(part) for part in problem["loc"][1:]]
    param = ".".join(part for part in location if not _TYPE_TAG.match(part))[:SHOWN_CHARACTERS] or None
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        return None, f"the body is not JSON: {problem['ctx']['error']}"
    if param is None:
        return None, "the body must be a JSON object, sent with the content type application/json"
    return param, f"{param}: {'no such parameter' if problem['type'] == 'extra_forbidden' else message}"


def add_security_headers(app: FastAPI) -> None:
    """Headers on every answer; one that an answer sets itself stays."""
    app.add_middleware(_SecurityHeaders)


class _SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class BodyLimit:
    """ASGI middleware: `app.add_middleware(BodyLimit, max_bytes=…)`. A larger body gets 413, one that does not arrive
    in time 408, JSON nested deeper than `max_depth` 400."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_depth: int = 32, max_seconds: float = 30.0) -> None:
        self.app, self.max_bytes, self.max_depth, self.max_seconds = app, max_bytes, max_depth, max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            body = await self._body(scope, receive)
        except RefusedRequest as refused:
            return await refused.answer()(scope, receive, send)
        if body is None:
            return  # the client has left
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, receive_again, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self.max_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.max_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self.max_bytes:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusedRequest(
                408, f"the body did not arrive within {self.max_seconds:g} seconds", headers={"connection": "close"}
            ) from None
        if nesting_depth(body) > self.max_depth:
            raise RefusedRequest(400, f"the body is nested deeper than {self.max_depth} levels", code="nested_too_deep")
        return bytes(body)

    def _too_large(self) -> RefusedRequest:
        return RefusedRequest(
            413,
            f"the body is larger than {self.max_bytes:,} bytes",
            code="body_too_large",
            headers={"connection": "close"},
        )


def nesting_depth(body: bytes | bytearray) -> int:
    """How deep brackets outside of strings are nested in JSON, or in what claims to be."""
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NO_BRACKETS), dtype=np.uint8)
    opens = np.isin(brackets, np.frombuffer(b"[{", dtype=np.uint8))
    return int(np.where(opens, 1, -1).cumsum().max(initial=0))
