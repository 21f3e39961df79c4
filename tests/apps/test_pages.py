"""Static files and templates: an application has its own and the shared ones, nothing of the other's."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

from fastapi import FastAPI
from jinja2 import TemplateNotFound
from starlette.testclient import TestClient

import energylm.apps
from energylm.apps.hosting import pages_of

SHARED = {"base.css", "favicon.svg"}
OWN = {"serve": {"page.css", "page.js"}, "study": {"study.css", "study.js"}}


@pytest.mark.parametrize(("app", "other"), [("serve", "study"), ("study", "serve")])
def test_an_application_serves_its_own_files_and_the_shared_ones(app, other):
    pages = pages_of(f"energylm.apps.{app}")
    assert set(pages.static_files) == SHARED | OWN[app]
    server = FastAPI()
    server.include_router(pages.static_router())
    client = TestClient(server)
    for name in SHARED | OWN[app]:
        folder = Path(energylm.apps.__path__[0]) / ("" if name in SHARED else app) / "static"
        assert client.get(f"/static/{name}").content == (folder / name).read_bytes()
    assert {client.get(f"/static/{name}").status_code for name in OWN[other]} == {404}


def test_templates_find_the_shared_layout_and_escape_what_they_show():
    page = pages_of("energylm.apps.study").page("message.html", heading="<b>", paragraphs=["a & b"])
    text = bytes(page.body).decode()
    assert (
        "&lt;b&gt;" in text and "a &amp; b" in text and "/static/base.css?v=" in text and "/static/study.css?v=" in text
    )
    with pytest.raises(TemplateNotFound):
        pages_of("energylm.apps.serve").page("message.html", heading="", paragraphs=[])
