"""The human study over HTTP: a rater's page behind a personal link, the owner's view behind the owner's token.

    GET  /r/{token}          the rater's next comparison, or why there is none
    POST /r/{token}/answer   a form of item, choice and seconds; back to the page once the vote is on the disk
    GET  /owner              the owner's view, or the form that asks for the token
    POST /owner              the token, in the body: gives a cookie; POST /owner/leave takes it back
    GET  /owner/progress     the same numbers as JSON, for `Authorization: Bearer TOKEN`
    GET  /healthz

A rater's page is a plain form: it works without a script, and whatever the browser forgets the store remembers. Nothing
is written without a token, and requests that another site started are turned away besides. Tokens are looked up by
their hash, stand in no log (the server writes none of requests) and in no referrer. The owner's token comes in the body
of a form and is kept by nobody; the browser gets a random cookie instead, which this process remembers as a hash and
forgets after some hours. Scripts send `Authorization: Bearer TOKEN`.

Relations  `store` decides and remembers; `apps.hosting` makes the pages.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from energylm.apps.hosting import pages_of
from energylm.apps.security import (
    SECURITY_HEADERS,
    BodyLimit,
    RefusedRequest,
    SafeJSON,
    add_security_headers,
    hash_token,
    new_token,
    token_matches,
)
from energylm.apps.study.design import StudyDesign
from energylm.apps.study.store import StudyStore
from energylm.apps.study.turns import CHOICES, Rater, Standing
from energylm.errors import BusyError, DiskFull, EnergyLMError
from energylm.estimators.pairwise_preference import krippendorff_alpha
from energylm.progress import say

PAGES = pages_of("energylm.apps.study")
MAX_BODY_BYTES = 4096
MAX_FIELDS = 8
LONGEST_SECONDS = 1e7  # four months on one comparison
COOKIE = "energylm_owner"
SESSION_SECONDS = 12 * 3600
MOST_SESSIONS = 64


def create_study_app(store: StudyStore) -> FastAPI:
    """The application over an open store; the caller runs it and closes the store."""
    app = FastAPI(title="energylm study", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    add_security_headers(app)
    _add_error_pages(app, str(store.study.folder))
    app.include_router(PAGES.static_router())
    app.include_router(_rater_router(store))
    app.include_router(_owner_router(store))

    @app.get("/healthz")
    def healthz() -> JSONResponse:
        store.owner_hash()  # the database answers
        return JSONResponse({"status": "ok"})

    return app


def _rater_router(store: StudyStore) -> APIRouter:
    router = APIRouter()

    def rater_of(token: str) -> Rater:
        rater = store.rater_by_token_hash(hash_token(token))
        if rater is None:
            raise RefusedRequest(404, _NO_RATER)
        return rater

    @router.get("/r/{token}")
    def rater_page(token: str) -> Response:
        return _current_page(store, token, rater_of(token))

    @router.post("/r/{token}/answer")
    def answer(token: str, form: Annotated[dict[str, str], Depends(read_form)]) -> Response:
        rater = rater_of(token)
        choice = next((choice for choice in CHOICES if choice == form.get("choice")), None)
        if choice is None:
            raise RefusedRequest(400, f"An answer is one of {', '.join(CHOICES)}. Please go back and choose one.")
        status = store.answer(rater.id, form.get("item", ""), choice, _seconds(form.get("seconds", "")))
        if status in ("stored", "repeated"):
            return RedirectResponse(f"/r/{token}", status_code=303)
        notice = {
            "refused": "That comparison was answered before, and the first answer stays. Here is the next one.",
            "handed over": "That comparison was open for too long and went to another reader. Here is the next one.",
        }[status]
        return _current_page(store, token, rater, notice=notice, status=409)

    return router


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that our own page sent; each at most once."""
    if not _from_here(request):
        raise RefusedRequest(403, "This form was sent from another site. Please open your own link and answer there.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise RefusedRequest(415, "A form is expected here (application/x-www-form-urlencoded).")
    try:
        body = (await request.body()).decode("ascii")
        fields = parse_qs(body, keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise RefusedRequest(400, "The form could not be read. Please go back and try again.") from None
    if any(len(values) > 1 for values in fields.values()):
        raise RefusedRequest(400, "A field of the form came twice. Please go back and try again.")
    return {name: values[0] for name, values in fields.items()}


def _from_here(request: Request) -> bool:
    """Whether our own page started the request, as far as the browser tells. Browsers leave the first header out where
    a study is served without TLS, and say "null" in the second because our pages send no referrer."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin", "null")
    return origin == "null" or urlsplit(origin).netloc == request.headers.get("host")


def _seconds(written: str) -> float:
    """How long the comparison was looked at; 0 where the page could not measure it."""
    try:
        seconds = float(written or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise RefusedRequest(400, f"The time must be a number of seconds from 0 to {LONGEST_SECONDS:.0f}.")
    return seconds


def _current_page(store: StudyStore, token: str, rater: Rater, *, notice: str = "", status: int = 200) -> Response:
    item = store.next_item(rater.id)
    if item is None:
        heading, paragraphs = _why_none(store.standing(rater.id))
        return PAGES.page("message.html", heading=heading, paragraphs=paragraphs)
    return PAGES.page(
        "rater_item.html",
        status=status,
        item=item,
        token=token,
        heading=store.study.design.title,
        question=store.study.design.question,
        part="Warm-up" if item.stage == "qualification" else "Study",
        warm_up=len(store.study.qualification),
        total=item.total or max(item.number, _most_comparisons(store)),
        at_most=item.total is None,
        first=item.number == 1,
        notice=notice,
    )


def _most_comparisons(store: StudyStore) -> int:
    """Pairs and checks of a rater whom nobody else leaves fewer."""
    design, pairs = store.study.design, len(store.study.pairs)
    return min(pairs, design.max_pairs_per_rater or pairs) + design.checks_needed(pairs)


def _why_none(standing: Standing) -> tuple[str, list[str]]:
    """What a rater reads who has nothing to answer."""
    if standing.stage == "failed":
        return "Thank you for trying", [
            "The warm-up showed that your answers differ from those this study needs, so it ends here for you. "
            "The comparisons were hard on purpose, and many people find them so.",
            "Nothing more is asked of you. You can close this page.",
        ]
    if standing.stage == "finished":
        return "That was the last one. Thank you!", [
            f"You compared {standing.pairs_answered:,} pairs, and every answer is stored. You can close this page.",
        ]
    return "Nothing to do right now", [
        "The remaining pairs are in the hands of other readers. If one of them leaves, it comes to you.",
        "Your answers are stored. Please open the same link again in a while.",
    ]


_NO_RATER = "This link is not known here. Please check that it was copied as a whole, or ask whoever sent it to you."


class Sessions:
    """Who has shown the owner's token: hashes of cookies and when they end. The oldest gives way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ends, self._lock = clock, dict[str, float](), Lock()

    def open(self) -> str:
        cookie = new_token()
        with self._lock:
            while len(self._ends) >= MOST_SESSIONS:
                del self._ends[next(iter(self._ends))]
            self._ends[hash_token(cookie)] = self._clock() + SESSION_SECONDS
        return cookie

    def knows(self, cookie: str) -> bool:
        return self._ends.get(hash_token(cookie), 0.0) > self._clock()

    def close(self, cookie: str) -> None:
        self._ends.pop(hash_token(cookie), None)


def _owner_router(store: StudyStore) -> APIRouter:
    router, sessions = APIRouter(), Sessions()

    def is_owner(token: str) -> bool:
        digest = store.owner_hash()
        return digest is not None and token_matches(token, digest)

    @router.get("/owner")
    def owner_page(request: Request) -> Response:
        if not sessions.knows(request.cookies.get(COOKIE, "")):
            return PAGES.page("owner_login.html", is_set=store.owner_hash() is not None, wrong=False)
        return PAGES.page("owner.html", **owner_view(store))

    @router.post("/owner")
    def log_in(request: Request, fields: Annotated[dict[str, str], Depends(read_form)]) -> Response:
        if not is_owner(fields.get("token", "").strip()):
            return PAGES.page("owner_login.html", status=403, is_set=store.owner_hash() is not None, wrong=True)
        answer = RedirectResponse("/owner", status_code=303)
        answer.set_cookie(
            COOKIE,
            sessions.open(),
            max_age=SESSION_SECONDS,
            path="/owner",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.post("/owner/leave", dependencies=[Depends(read_form)])
    def log_out(request: Request) -> Response:
        sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/owner", status_code=303)
        answer.delete_cookie(COOKIE, path="/owner")
        return answer

    @router.get("/owner/progress")
    def progress(request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not is_owner(token.strip()):
            message, headers = "send the owner's token as `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"}
            return RefusedRequest(401, message, headers=headers).answer()
        return SafeJSON(owner_view(store))

    return router


def owner_view(store: StudyStore) -> dict[str, Any]:
    """The numbers of the page. Which model is ahead is not among them: whoever looks until the numbers please has not
    tested anything; `energylm study report` tells it when the study is done."""
    progress, design, now = store.progress(), store.study.design, time.time()
    pairs = [answer for answer in store.answers() if answer.kind == "pair"]
    votes = {(answer.rater, answer.item): answer.preferred or "tie" for answer in pairs}
    return asdict(progress) | {
        "title": design.title,
        "agreement": krippendorff_alpha(votes),
        "pairs_with_two_votes": sum(count > 1 for count in Counter(item for _, item in votes).values()),
        "checks_answered": sum(standing.checks_answered for standing in progress.raters),
        "checks_right": sum(standing.checks_right for standing in progress.raters),
        "needed": design.qualification.needed,
        "check_mark": design.exclusion.check_mark,
        "raters": [_rater(standing, design, now) for standing in progress.raters],
    }


def _rater(standing: Standing, design: StudyDesign, now: float) -> dict[str, Any]:
    facts = asdict(standing)
    return facts | {
        "label": facts.pop("rater")["label"],
        "checks_kept": standing.checks_right >= design.exclusion.needed_checks(standing.checks_answered),
        "last_seen_words": "never" if standing.last_seen is None else _ago(now - standing.last_seen),
    }


def _ago(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"


def _add_error_pages(app: FastAPI, folder: str) -> None:
    """Whatever goes wrong is a short page; of a failure of ours it tells no more than that, and the log the rest."""

    def refused(_: Request, error: RefusedRequest) -> Response:
        return _error_page(error.status, str(error))

    def known(_: Request, error: EnergyLMError) -> Response:
        if isinstance(error, BusyError | DiskFull) or folder in str(error):  # the database's trouble, not the rater's
            say(str(error))
            return _error_page(503, "The study cannot store answers at the moment. Please try again in a minute.")
        return _error_page(400, f"{str(error)[0].upper()}{str(error)[1:]}.")

    def http_error(_: Request, error: HTTPException) -> Response:
        message = "There is no such page here." if error.status_code == 404 else str(error.detail)
        return _error_page(error.status_code, message)

    def failure(_: Request, __: Exception) -> Response:
        answer = _error_page(500, "Something went wrong in the study's server. Please try again in a minute.")
        answer.headers.update(SECURITY_HEADERS)  # this answer is made outside of the middleware
        return answer

    app.exception_handler(RefusedRequest)(refused)
    app.exception_handler(EnergyLMError)(known)
    app.exception_handler(HTTPException)(http_error)
    app.exception_handler(Exception)(failure)


def _error_page(status: int, message: str) -> Response:
    return PAGES.page("message.html", status=status, heading="This did not work", paragraphs=[message])
