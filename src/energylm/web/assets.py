"""The files that pages are made of: templates that escape whatever they show, style sheets and scripts by a fixed list.

A static file is read once and served from memory under its name alone, so no request reaches the file system. Pages
name it with a hash of its content (`asset("base.css")` in a template): browsers may keep it and still see a new one.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Any

from fastapi import APIRouter, HTTPException
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
KEEP_SECONDS = 86_400


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """name → (content, kind)."""
    folder = resources.files("energylm.web") / "static"
    kinds = {file.name: KINDS.get("." + file.name.rpartition(".")[2]) for file in folder.iterdir()}
    return {name: ((folder / name).read_bytes(), kind) for name, kind in kinds.items() if kind}


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("energylm.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.globals["asset"] = lambda name: f"/static/{name}?v={hashlib.sha256(static_files()[name][0]).hexdigest()[:12]}"
    return made


def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """The template with these values; every value is escaped."""
    return HTMLResponse(_environment().get_template(template).render(values), status_code=status)


def static_router() -> APIRouter:
    router = APIRouter()

    @router.get("/static/{name}", include_in_schema=False)
    def static_file(name: str) -> Response:
        if name not in static_files():
            raise HTTPException(404, "no such file")
        content, kind = static_files()[name]
        return Response(content, media_type=kind, headers={"cache-control": f"public, max-age={KEEP_SECONDS}"})

    return router
