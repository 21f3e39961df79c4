"""The owner's view of a running study: how far it is, how well raters agree, who passes the checks. It changes nothing.

Which model is ahead is not shown: whoever looks until the numbers please has not tested anything. `energylm study
report` tells it when the study is done.

The owner's token comes in the body of a form and is kept by nobody; the browser gets a random cookie instead, which
this process remembers as a hash and forgets after some hours. Scripts send `Authorization: Bearer TOKEN`.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from energylm.apps.pages import Pages, pages_of
from energylm.apps.security import SafeJSON, error_answer, hash_token, new_token, token_matches
from energylm.apps.study.records import Standing
from energylm.apps.study.store import StudyStore
from energylm.estimators.rater_agreement import krippendorff_alpha

COOKIE = "energylm_owner"
SESSION_SECONDS = 12 * 3600
MOST_SESSIONS = 64


def pages() -> Pages:
    """Templates and static files of this application."""
    return pages_of("energylm.apps.study")


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


def owner_router(store: StudyStore, *, form: Callable[[Request], Awaitable[dict[str, str]]]) -> APIRouter:
    """`form` reads a form that our own page sent."""
    router, sessions = APIRouter(), Sessions()

    def is_owner(token: str) -> bool:
        digest = store.owner_hash()
        return digest is not None and token_matches(token, digest)

    @router.get("/owner")
    def owner_page(request: Request) -> Response:
        if not sessions.knows(request.cookies.get(COOKIE, "")):
            return pages().page("owner_login.html", is_set=store.owner_hash() is not None, wrong=False)
        return pages().page("owner.html", **owner_view(store))

    @router.post("/owner")
    def log_in(request: Request, fields: Annotated[dict[str, str], Depends(form)]) -> Response:
        if not is_owner(fields.get("token", "").strip()):
            return pages().page("owner_login.html", status=403, is_set=store.owner_hash() is not None, wrong=True)
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

    @router.post("/owner/leave", dependencies=[Depends(form)])
    def log_out(request: Request) -> Response:
        sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/owner", status_code=303)
        answer.delete_cookie(COOKIE, path="/owner")
        return answer

    @router.get("/owner/progress")
    def progress(request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not is_owner(token.strip()):
            return error_answer(
                401, "send the owner's token as `Authorization: Bearer TOKEN`", headers={"www-authenticate": "Bearer"}
            )
        return SafeJSON(owner_view(store))

    return router


def owner_view(store: StudyStore) -> dict[str, Any]:
    """The numbers of the page."""
    progress, study, now = store.progress(), store.study, time.time()
    pairs = [answer for answer in store.answers() if answer.kind == "pair"]
    votes = {(answer.rater, answer.item): answer.preferred or "tie" for answer in pairs}
    needed_checks = study.design.exclusion.needed_checks
    return {
        "title": study.design.title,
        "votes": progress.votes,
        "votes_wanted": progress.votes_wanted,
        "pairs": progress.pairs,
        "pairs_complete": progress.pairs_complete,
        "open": progress.open,
        "agreement": krippendorff_alpha(votes),
        "pairs_with_two_votes": sum(count > 1 for count in Counter(item for _, item in votes).values()),
        "checks_answered": sum(standing.checks_answered for standing in progress.raters),
        "checks_right": sum(standing.checks_right for standing in progress.raters),
        "needed": study.design.qualification.needed,
        "check_mark": study.design.exclusion.check_mark,
        "raters": [_rater(standing, needed_checks(standing.checks_answered), now) for standing in progress.raters],
    }


def _rater(standing: Standing, checks_needed: int, now: float) -> dict[str, Any]:
    return {
        "label": standing.rater.label,
        "stage": standing.stage,
        "qualification_answered": standing.qualification_answered,
        "qualification_right": standing.qualification_right,
        "checks_answered": standing.checks_answered,
        "checks_right": standing.checks_right,
        "checks_kept": standing.checks_right >= checks_needed,
        "pairs_answered": standing.pairs_answered,
        "last_seen": standing.last_seen,
        "last_seen_words": "never" if standing.last_seen is None else _ago(now - standing.last_seen),
    }


def _ago(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
