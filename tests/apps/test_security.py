"""Tokens, headers, limits of bodies and errors in one line: what every web face shares, on a small application."""

import asyncio
import json

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient

from energylm.apps import security
from energylm.apps.security import BodyLimit, RefusedRequest, hash_token, nesting_depth, new_token, token_matches
from energylm.errors import BusyError, DataError, NonFiniteLoss

HTML = '<script>alert("x")</script>&'


class Echo(BaseModel):
    number: int
    texts: list[str] | list[int] = []


def application():
    app = FastAPI(default_response_class=security.SafeJSON)
    security.add_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=1000, max_depth=4, max_seconds=0.1)
    security.add_security_headers(app)

    @app.post("/echo")
    def echo(body: Echo):
        return {"number": body.number, "shown": HTML}

    @app.get("/raise/{name}")
    def fail(name: str):
        raise {
            "data": DataError(f"two\nlines {HTML}"),
            "busy": BusyError("held"),
            "diverged": NonFiniteLoss("step 3"),
            "refused": RefusedRequest(418, "no", param="p", code="c", headers={"x-extra": "1"}),
            "bug": RuntimeError("secret of the server"),
        }[name]

    @app.get("/page", response_class=HTMLResponse)
    def page():
        return HTMLResponse("<p>x</p>", headers={"cache-control": "public"})

    return app


@pytest.fixture
def client():
    return TestClient(application(), raise_server_exceptions=False)


def test_a_token_matches_its_digest_and_no_other():
    token = new_token()
    assert len(token) >= 32 and token != new_token()
    assert len(hash_token(token)) == 64 and token not in hash_token(token)
    assert token_matches(token, hash_token(token))
    assert not token_matches(token + "x", hash_token(token))
    assert not token_matches(token, token)  # teeth: a file of plain tokens would not let anyone in
    assert not token_matches("\ud800", hash_token(token))  # what a client can send, however odd, is compared


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b"", 0),
        (b"1", 0),
        (b"[]", 1),
        (b'{"a": [1, [2]]}', 3),
        (b'{"a": "[[[[[["}', 1),
        (rb'{"a": "\"[[[[", "b": [1]}', 2),
        (rb'["\\", [1]]', 2),
        (b"[[[[[[", 6),
        (b'"[[[', 0),
        (b"]]]][[", 0),
    ],
)
def test_nesting_is_counted_outside_of_strings(body, depth):
    """By hand; what closes more than was opened is no JSON anyway."""
    assert nesting_depth(body) == depth


def test_nesting_is_counted_in_time_for_hostile_bodies():
    """An escaped quote after another in a string without end would take n² steps if each were tried as a beginning."""
    assert nesting_depth(b'"' + b'\\"' * 200_000) == 0
    assert nesting_depth(b"[" * 400_000) == 400_000


def test_headers_are_on_every_answer_but_those_an_answer_sets_itself(client):
    for answer in (client.post("/echo", json={"number": 1}), client.get("/nothing"), client.get("/raise/bug")):
        for name, value in security.SECURITY_HEADERS.items():
            assert answer.headers[name] == value
    page = client.get("/page")
    assert page.headers["cache-control"] == "public"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "says"),
    [
        (b"x" * 1001, "application/json", 413, "larger than 1,000 bytes"),
        (b"[[[[[1]]]]]", "application/json", 400, "nested deeper than 4 levels"),
        (b"[[[[[1]]]]]", "text/plain", 400, "nested deeper than 4 levels"),
        (b'{"number": ', "application/json", 400, "the body is not JSON"),
        (b"\xff\xfe\xfd", "application/json", 400, "error parsing the body"),
        (b"", "application/json", 400, "must be a JSON object"),
        (b"3", "application/json", 400, "must be a JSON object"),
        (b'{"number": 1}', "text/plain", 400, "content type application/json"),  # what other sites' forms can send
        (b'{"number": "one"}', "application/json", 400, "number: Input should be a valid integer"),
        (b'{"number": 1, "texts": [{}]}', "application/json", 400, "texts.0: Input should be"),
    ],
)
def test_bad_bodies_get_one_line(client, content, kind, status, says):
    answer = client.post("/echo", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"] and "\n" not in error["message"]


def test_a_large_body_without_a_length_is_refused_while_it_comes(client):
    def pieces():
        for _ in range(200):
            yield b"[" * 10

    assert client.post("/echo", content=pieces()).status_code == 413


def test_a_body_that_does_not_come_is_refused():
    """The body's second half never comes; whoever waited for it would wait forever."""
    sent = []
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        for message in messages:
            return message
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/echo", "headers": [], "query_string": b""}
    asyncio.run(application()(scope, receive, send))
    assert sent[0]["status"] == 408
    assert "did not arrive within 0.1 seconds" in json.loads(sent[1]["body"])["error"]["message"]


@pytest.mark.parametrize(
    ("name", "status", "kind", "says"),
    [
        ("data", 400, "invalid_request_error", "two lines"),
        ("busy", 409, "invalid_request_error", "held"),
        ("diverged", 500, "server_error", "step 3"),
        ("refused", 418, "invalid_request_error", "no"),
        ("bug", 500, "server_error", "its log says what"),
    ],
)
def test_errors_become_one_line_and_keep_secrets(client, name, status, kind, says):
    answer = client.get(f"/raise/{name}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    assert says in answer.json()["error"]["message"] and "secret" not in answer.text
    assert "<" not in answer.text  # nor is HTML ever raw, whatever a message repeats
    if name == "refused":
        assert answer.headers["x-extra"] == "1"
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("p", "c")


def test_answers_hold_no_raw_html(client):
    answer = client.post("/echo", json={"number": 1})
    assert answer.json()["shown"] == HTML  # the same to whoever reads JSON
    assert not set("<>&") & set(answer.text)
    assert set("<>&") & set(json.dumps({"shown": HTML}))  # teeth: plain JSON would hold it
