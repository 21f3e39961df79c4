"""The application of `energylm serve`: endpoints, keys, limits, metrics and the page, put together.

    POST /v1/completions /v1/chat/completions                          with a key, where there are keys
    POST /v1/score /v1/rerank /v1/detect      GET /v1/models /metrics  likewise
    GET / /healthz /openapi.json                                       for everyone

The page is one HTML file with style sheets and a script that asks the server's own endpoints; it needs no other
machine. What the server cannot do (no detector, no scorer) it says when asked.

Relations  `services.Services` does the work, `queue` brings it to one thread, `verb` listens.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from energylm import __version__
from energylm.apps import hosting
from energylm.apps.hosting import pages_of
from energylm.apps.security import (
    ApiKeys,
    BodyLimit,
    RefusedRequest,
    SafeJSON,
    add_error_handlers,
    add_security_headers,
)
from energylm.apps.serve.chat import chat_router
from energylm.apps.serve.completions import completions_router
from energylm.apps.serve.queue import Handler, ModelQueue, ServeMetrics
from energylm.apps.serve.schemas import ErrorResponse, Health, ModelFacts, ModelsResponse
from energylm.apps.serve.services import Services, Serving
from energylm.apps.serve.tools import detect_texts, rerank_lists, score_texts, tools_router
from energylm.apps.serve.upstream import Upstream
from energylm.apps.serve.verb import ServeLimits

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "What was asked cannot be done; one line says why."},
    "5XX": {"model": ErrorResponse, "description": "The server, or the one behind it, failed or was too slow."},
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    services: Services,
    limits: ServeLimits | None = None,
    keys: ApiKeys | None = None,
    *,
    upstream: Upstream | None = None,
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """`keys` that are empty let everyone ask; `hosts` are the names under which the server may be addressed (all where
    None): without keys this keeps pages of other sites out, whatever name they give to this machine."""
    limits, keys, metrics = limits or ServeLimits(), keys or ApiKeys(), ServeMetrics()
    queue = ModelQueue(_handlers(services), limits=limits, metrics=metrics, on_quiet=hosting.give_back_free_memory)
    serving = Serving(services, limits, queue, metrics, upstream)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        queue.open()
        yield
        await queue.close()
        if upstream is not None:
            await upstream.close()

    app = FastAPI(
        title="energylm",
        version=__version__,
        description="Completions by joint sampling of a language model and an energy; scores, reranking, detection.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=SafeJSON,
        responses=ERRORS,
        redirect_slashes=False,
    )
    guard = [Depends(_key_holder(keys)), Depends(HTTPBearer(auto_error=False))] if keys else []
    for router in (completions_router, chat_router, tools_router, _models_router):
        app.include_router(router(serving), dependencies=guard)
    app.include_router(_health_router(serving))
    app.include_router(page_router())
    add_error_handlers(app)
    app.add_middleware(
        BodyLimit, max_bytes=limits.max_body_bytes, max_depth=limits.max_json_depth, max_seconds=limits.body_seconds
    )
    if hosts is not None:
        app.add_middleware(_HostCheck, hosts=hosts)
    app.add_middleware(_Measured, metrics=metrics, known=frozenset(["/", *app.openapi()["paths"]]))
    add_security_headers(app)
    return app


def _handlers(services: Services) -> dict[str, Handler]:
    """By kind of work: requests that travel together → an answer to each."""
    handlers: dict[str, Handler] = {
        "score": lambda bodies, _: score_texts(services, bodies),
        "rerank": lambda bodies, _: rerank_lists(services, bodies),
        "detect": lambda bodies, _: detect_texts(services, bodies),
    }
    completer, chooser = services.completer, services.chooser
    if completer is not None:
        handlers["complete"] = lambda tasks, is_wanted: completer.complete(tasks, is_wanted=is_wanted)
        handlers["answer"] = lambda tasks, is_wanted: completer.for_chat.complete(tasks, is_wanted=is_wanted)
    if chooser is not None:
        handlers["choose"] = lambda tasks, _: chooser.choose(tasks)
    return handlers


def _models_router(serving: Serving) -> APIRouter:
    """What is there to be known of the server, for those with a key."""
    router, since = APIRouter(), int(time.time())

    def facts(name: str) -> ModelFacts:
        description = serving.model_names[name]
        return ModelFacts(id=name, object="model", created=since, owned_by="energylm", description=description)

    @router.get("/v1/models", response_model=ModelsResponse, summary="The models that are served")
    async def models() -> Any:
        return ModelsResponse(object="list", data=[facts(name) for name in serving.model_names])

    @router.get("/v1/models/{name}", response_model=ModelFacts, summary="One of them")
    async def model(name: str) -> Any:
        if name not in serving.model_names:
            raise RefusedRequest(404, "there is no such model here", param="model", code="model_not_found")
        return facts(name)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Counters and histograms for Prometheus",
    )
    async def metrics() -> Response:
        return Response(serving.metrics.text(), headers={"content-type": METRICS_TYPE})

    return router


def _health_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz", response_model=Health, summary="Whether the server lives")
    async def health() -> Any:
        return Health(
            status="ok", model=serving.services.name, waiting=serving.queue.waiting, running=serving.queue.running
        )

    return router


def _key_holder(keys: ApiKeys) -> Any:
    async def check(request: Request) -> None:
        if not keys.allow(request.headers.get("authorization")):
            raise RefusedRequest(
                401,
                "a valid API key is needed; send it as `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    return check


class _HostCheck:
    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _host(scope) not in self.hosts:
            answer = RefusedRequest(
                403, "this server answers under the names of its own machine only; it has no keys"
            ).answer()
            return await answer(scope, receive, send)
        await self.app(scope, receive, send)


def _host(scope: Scope) -> str:
    """The name that the client gave to this server, without the port."""
    named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return named.partition("]")[0].lstrip("[") if named.startswith("[") else named.partition(":")[0]


class _Measured:
    """Counts requests and their time, by path."""

    def __init__(self, app: ASGIApp, metrics: ServeMetrics, known: frozenset[str]) -> None:
        self.app, self.metrics, self.known = app, metrics, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, path = time.monotonic(), scope["path"] if scope["path"] in self.known else "other"
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency_seconds.labels(path).observe(time.monotonic() - begun)


def page_router() -> APIRouter:
    """GET `/` and GET `/static/…`: no key needed, nothing written."""
    pages = pages_of("energylm.apps.serve")
    router = pages.static_router()

    @router.get("/", include_in_schema=False, response_class=HTMLResponse)
    def front_page() -> HTMLResponse:
        return pages.page("page.html")

    return router
