"""The page at `/` of `energylm serve`: base against joint samples, detector blocks in colour, n-best lists reranked.

It is one HTML file with style sheets and a script that asks the server's own endpoints; it needs no other machine.
What the server cannot do (no detector, no scorer) it says when asked.

Relations  `serve_app` includes `page_router()`; `assets` serves the files.
"""

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from energylm.web import assets


def page_router() -> APIRouter:
    """GET `/` and GET `/static/…`: no key needed, nothing written."""
    router = assets.static_router()

    @router.get("/", include_in_schema=False, response_class=HTMLResponse)
    def front_page() -> HTMLResponse:
        return assets.page("page.html")

    return router
