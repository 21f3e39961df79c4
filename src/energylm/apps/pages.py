"""The files that pages are made of: templates that escape whatever they show, style sheets and scripts by a fixed list.

An application has folders `templates` and `static` of its own; those beside this file are everybody's. A static file is
read once and served from memory under its name alone, so no request reaches the file system. Pages name it with a hash
of its content (`asset("base.css")` in a template): browsers may keep it and still see a new one.
"""

import hashlib
from functools import cache
from importlib import resources
from typing import Any

from fastapi import APIRouter, HTTPException
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
KEEP_SECONDS = 86_400
SHARED = "energylm.apps"


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
