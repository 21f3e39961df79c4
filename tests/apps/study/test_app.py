"""The study over HTTP, without a browser: what is answered, what is refused, and what no answer gives away."""

import logging
import re

import pytest
from fastapi.testclient import TestClient

from energylm.apps.security import SECURITY_HEADERS, hash_token, new_token
from energylm.apps.study.app import COOKIE, SESSION_SECONDS, Sessions, create_study_app, owner_view
from energylm.apps.study.store import StudyStore
from energylm.errors import BusyError, DataError, DiskFull

HERE = {"sec-fetch-site": "same-origin"}


class Room:
    """A study with raters, and a client that talks to it."""

    def __init__(self, folder, *, raters=1):
        self.store = StudyStore.open(folder)
        self.tokens = [new_token() for _ in range(raters)]
        self.ids = [self.store.add_rater(f"rater {n}", hash_token(token)) for n, token in enumerate(self.tokens)]
        self.owner = new_token()
        self.client = TestClient(create_study_app(self.store), follow_redirects=False, raise_server_exceptions=False)

    def page(self, rater=0):
        return self.client.get(f"/r/{self.tokens[rater]}")

    def send(self, item, choice="left", *, rater=0, seconds="2.5", headers=HERE, **more):
        form = {"item": item, "choice": choice, "seconds": seconds} | more
        return self.client.post(f"/r/{self.tokens[rater]}/answer", data=form, headers=headers)

    def right_choice(self, rater=0):
        """The open item and the side of real text, where it has one."""
        item = self.store.next_item(self.ids[rater])
        return item.id, "right" if "mend the bridge" in item.right else "left"

    def answers(self):
        return list(self.store.answers())

    def qualify(self, rater=0):
        while self.store.next_item(self.ids[rater]).stage == "qualification":
            self.store.answer(self.ids[rater], *self.right_choice(rater), 1.0)


@pytest.fixture
def room(make_study):
    with_store = []

    def open_room(*, raters=1, **study):
        with_store.append(Room(make_study(**study), raters=raters))
        return with_store[-1]

    yield open_room
    for study in with_store:
        study.store.close()


def item_in(page):
    return re.search(r'name="item" value="(\w+)"', page.text).group(1)


def test_a_rater_answers_from_the_first_pair_to_the_last(room):
    here = room(pairs=4, qualification=3)
    seen = []
    while "<form" in (page := here.page()).text:
        item, choice = here.right_choice()
        assert item_in(page) == item
        answer = here.send(item, choice)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/r/{here.tokens[0]}")
        seen.append(item)
    assert len(seen) == len(set(seen)) == 3 + 4 + 2
    assert "last one. Thank you!" in page.text and "4 pairs" in page.text
    assert [(answer.item, answer.seconds) for answer in here.answers()] == [(item, 2.5) for item in seen]


def test_whoever_fails_the_warm_up_is_let_go_politely(room):
    here = room(pairs=4, qualification=3)
    for _ in range(3):
        item, right = here.right_choice()
        here.send(item, "left" if right == "right" else "right")
    page = here.page()
    assert page.status_code == 200 and "Thank you for trying" in page.text and "<form" not in page.text
    assert here.send("0" * 16).status_code == 400


def test_when_others_hold_the_last_pairs_the_page_says_so(room):
    here = room(raters=2, pairs=1, qualification=0, raters_per_pair=1)
    while "A clerk wrote" not in here.page(0).text:  # a check comes first
        here.send(item_in(here.page(0)))
    assert "Nothing to do right now" in here.page(1).text


def test_the_same_answer_twice_is_one_and_another_one_is_refused(room):
    here = room(qualification=0)
    item = item_in(here.page())
    assert [here.send(item, choice).status_code for choice in ("left", "left", "right")] == [303, 303, 409]
    page = here.send(item, "right")
    assert "the first answer stays" in page.text and item_in(page) != item
    assert [(answer.item, answer.choice) for answer in here.answers()] == [(item, "left")]


def test_a_page_without_a_script_sends_no_seconds(room):
    here = room(qualification=0)
    assert here.send(item_in(here.page()), seconds="").status_code == 303
    assert here.answers()[0].seconds == 0


def test_ties_are_offered_only_where_they_are_allowed(room):
    closed = room(name="closed", qualification=0)
    assert 'value="tie"' not in closed.page().text
    assert closed.send(item_in(closed.page()), "tie").status_code == 400
    free = room(name="free", qualification=0, ties=True)
    assert 'value="tie"' in free.page().text
    assert free.send(item_in(free.page()), "tie").status_code == 303


def test_the_page_tells_neither_models_nor_checks(room):
    """Of an item the page holds its identifier, its texts and its number: pairs and checks look alike."""
    here = room(pairs=6, qualification=0)
    shapes = set()
    while "<form" in (text := here.page().text):
        item = here.store.next_item(here.ids[0])
        for part in (item.id, item.prefix, item.left, item.right, here.tokens[0]):
            assert part.strip() in text or "&lt;script&gt;" in text
            text = text.replace(part.strip(), "…")
        assert not re.search(r"\b(shuffled|real|model|check|first_model|wrong)\b", re.sub(r"\?v=\w+", "", text))
        shapes.add(re.sub(r"\d+", "N", text.split("</details>")[1].split("<form")[1]))
        here.store.answer(here.ids[0], item.id, "left", 1.0)
    kinds = {answer.kind for answer in here.answers()}
    assert kinds == {"pair", "check"} and len(shapes) == 1


def test_texts_are_escaped(room):
    here = room(qualification=0)
    texts = []
    for _ in range(4):  # the hostile prefix is the first pair's; a check may come before it
        texts.append(here.page().text)
        here.store.answer(here.ids[0], here.store.next_item(here.ids[0]).id, "left", 1.0)
    hostile = next(text for text in texts if "A clerk wrote" in text)
    assert "&lt;script&gt;document.title = &#34;stolen&#34;&lt;/script&gt; &amp; &#34;left&#34;" in hostile
    assert len(re.findall("<script", hostile)) == 1  # ours


def test_a_hostile_label_or_title_is_escaped_in_the_owners_view(room):
    here = room(title="<script>1</script>")
    here.store.add_rater("<img src=x onerror=alert(1)>", hash_token(new_token()))
    here.store.set_owner_hash(hash_token(here.owner))
    here.client.post("/owner", data={"token": here.owner}, headers=HERE)
    page = here.client.get("/owner").text
    assert "&lt;img src=x" in page and "<img" not in page and "<script" not in page


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"item": "nonsense"}, 400, "not handed to this rater"),
        ({"choice": "both"}, 400, "An answer is one of"),
        ({"choice": ""}, 400, "An answer is one of"),
        ({"seconds": "nan"}, 400, "number of seconds"),
        ({"seconds": "-1"}, 400, "number of seconds"),
        ({"seconds": "1e9"}, 400, "number of seconds"),
        ({"seconds": "soon"}, 400, "number of seconds"),
        ({"x" * 5000: "y"}, 413, "larger than 4,096 bytes"),
        ({f"field{n}": "y" for n in range(20)}, 400, "could not be read"),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403, "another site"),
        ({"headers": {"sec-fetch-site": "same-site"}}, 403, "another site"),
        ({"headers": {"origin": "https://evil.example"}}, 403, "another site"),
        ({"headers": {"content-type": "text/plain"}}, 415, "form is expected"),
    ],
)
def test_a_wrong_answer_gets_one_line_of_why_and_stores_nothing(room, change, status, says):
    here = room(qualification=0)
    answer = here.send(**({"item": item_in(here.page())} | change))
    assert (answer.status_code, says in answer.text, here.answers()) == (status, True, [])


@pytest.mark.parametrize(
    "headers", [HERE, {}, {"origin": "null"}, {"origin": "http://testserver"}, {"sec-fetch-site": "none"}]
)
def test_our_own_page_is_let_through(room, headers):
    """Teeth for the refusals above: what browsers send from our page, with and without TLS, passes."""
    here = room(qualification=0)
    assert here.send(item_in(here.page()), headers=headers).status_code == 303


@pytest.mark.parametrize("body", [b"\xff\xfe", b"item", b"item=a&item=b&choice=left", b"[" * 3000])
def test_malformed_bodies_are_refused(room, body):
    here = room(qualification=0)
    kind = HERE | {"content-type": "application/x-www-form-urlencoded"}
    answer = here.client.post(f"/r/{here.tokens[0]}/answer", content=body, headers=kind)
    assert answer.status_code == 400 and here.answers() == []


def test_nothing_is_written_without_a_token(room):
    """Every route that takes anything but GET, with a wrong token; and GETs change nothing without one."""
    here = room(qualification=0)
    item = item_in(here.page())
    before = here.store.progress()
    form = {"item": item, "choice": "left", "seconds": "1", "token": new_token()}
    described = here.client.app.openapi()["paths"]
    routes = [(method, path) for path, methods in described.items() for method in methods]
    writing = [path for method, path in routes if method != "get"]
    assert sorted(writing) == ["/owner", "/owner/leave", "/r/{token}/answer"]
    for method, path in routes:
        answer = here.client.request(method, path.replace("{token}", new_token()), data=form, headers=HERE)
        assert answer.status_code in (200, 303, 401, 403, 404), path
    assert here.store.progress() == before and here.store.owner_hash() is None


def test_an_unknown_link_is_a_page_that_says_so(room):
    here = room()
    answer = here.client.get(f"/r/{new_token()}")
    assert (answer.status_code, "This link is not known here" in answer.text) == (404, True)


def test_every_answer_carries_the_headers(room):
    here = room()
    paths = (
        f"/r/{here.tokens[0]}",
        "/r/unknown",
        "/owner",
        "/owner/progress",
        "/healthz",
        "/nowhere",
        "/static/study.js",
    )
    for path in paths:
        headers = here.client.get(path).headers
        changed = {"cache-control"} if path.startswith("/static") else set()
        assert {name: headers[name] for name in SECURITY_HEADERS if name not in changed} == {
            name: value for name, value in SECURITY_HEADERS.items() if name not in changed
        }, path


def test_a_failure_of_ours_is_a_page_without_details(room, monkeypatch):
    here = room()
    monkeypatch.setattr(here.store, "next_item", lambda _: 1 / 0)
    answer = here.page()
    assert answer.status_code == 500 and "ZeroDivision" not in answer.text
    assert answer.headers["content-security-policy"] == SECURITY_HEADERS["content-security-policy"]


@pytest.mark.parametrize("error", [DiskFull, BusyError, DataError])
def test_trouble_with_the_database_is_told_to_the_owner_only(room, monkeypatch, capfd, error):
    """The page asks for patience (its script sends the answer again on 5xx); the path goes to the server's own log."""
    here = room(qualification=0)
    item, file = item_in(here.page()), here.store.study.folder / "study.sqlite"

    def fails(*_):
        raise error(f"{file} is in trouble")

    monkeypatch.setattr(here.store, "answer", fails)
    answer = here.send(item)
    assert answer.status_code == 503 and str(file) not in answer.text and "try again in a minute" in answer.text
    assert capfd.readouterr().err == f"{file} is in trouble\n"


def test_static_files_are_a_fixed_list(room):
    here = room()
    assert here.client.get("/static/study.js").headers["content-type"].startswith("text/javascript")
    for path in ("/static/..%2fstudy_app.py", "/static/%2e%2e/study_app.py", "/static/nothing.js", "/static/"):
        assert here.client.get(path).status_code == 404


def test_the_owner_comes_in_by_a_token_in_the_body_and_leaves(room):
    here = room()
    assert "has no owner’s token yet" in here.client.get("/owner").text
    here.store.set_owner_hash(hash_token(here.owner))
    assert 'name="token"' in here.client.get("/owner").text
    wrong = here.client.post("/owner", data={"token": new_token()}, headers=HERE)
    assert wrong.status_code == 403 and "not the owner’s token" in wrong.text and COOKIE not in here.client.cookies
    right = here.client.post("/owner", data={"token": here.owner}, headers=HERE)
    cookie = right.headers["set-cookie"]
    assert right.status_code == 303 and here.owner not in cookie
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/owner" in cookie
    assert "rater 0" in here.client.get("/owner").text
    assert here.client.post("/owner/leave", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    leave = {"content-type": "application/x-www-form-urlencoded", **HERE}
    assert here.client.post("/owner/leave", headers=leave).status_code == 303
    here.client.cookies.set(COOKIE, re.search(rf"{COOKIE}=([^;]+)", cookie).group(1), path="/owner")
    assert "rater 0" not in here.client.get("/owner").text  # the cookie is dead, not only deleted


def test_a_raters_token_is_not_the_owners(room):
    here = room()
    here.store.set_owner_hash(hash_token(here.owner))
    assert here.client.post("/owner", data={"token": here.tokens[0]}, headers=HERE).status_code == 403
    assert here.client.get(f"/r/{here.owner}").status_code == 404


def test_a_session_ends_by_itself_and_there_are_not_too_many():
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    first = sessions.open()
    assert sessions.knows(first) and not sessions.knows("other")
    now[0] = SESSION_SECONDS + 1
    assert not sessions.knows(first)
    many = [sessions.open() for _ in range(100)]
    assert [sessions.knows(cookie) for cookie in many] == [False] * 36 + [True] * 64


def test_progress_as_json_for_the_owner_only(room):
    here = room(pairs=4, qualification=3)
    here.store.set_owner_hash(hash_token(here.owner))
    here.qualify()
    for token in ("", "Bearer", f"Bearer {new_token()}", f"Basic {here.owner}"):
        answer = here.client.get("/owner/progress", headers={"authorization": token})
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
    found = here.client.get("/owner/progress", headers={"authorization": f"Bearer {here.owner}"}).json()
    assert (found["votes"], found["votes_wanted"], found["raters"][0]["qualification_right"]) == (0, 12, 3)


def test_the_owner_sees_agreement_by_hand(room):
    """Two raters, two pairs, votes A A | A B: n_A = 3, n_B = 1, D_observed = 2/4, D_expected = 2·3·1 / (4·3) = 1/2, so
    alpha = 0; with A A | B B it is 1."""
    for name, second, alpha in (("chance", "A", 0.0), ("perfect", "B", 1.0)):
        here = room(name=name, raters=2, pairs=2, qualification=0, raters_per_pair=2)
        wanted = [{0: "A", 1: second}, {0: "A", 1: "B"}]  # of each rater, by pair
        for rater in (0, 1):
            while item := here.store.next_item(here.ids[rater]):
                number = 0 if "A clerk" in item.prefix else 1
                model_left = "A" if "forgot it there" in item.left else "B"
                choice = "left" if wanted[rater][number] == model_left else "right"
                here.store.answer(here.ids[rater], item.id, choice, 1.0)
        found = owner_view(here.store)
        assert (found["agreement"], found["pairs_with_two_votes"]) == (pytest.approx(alpha, abs=1e-12), 2)


def test_no_token_is_logged(room, caplog):
    caplog.set_level(logging.DEBUG)
    here = room(qualification=0)
    here.store.set_owner_hash(hash_token(here.owner))
    here.send(item_in(here.page()))
    here.client.post("/owner", data={"token": here.owner}, headers=HERE)
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("httpx")]
    assert not [line for line in ours if here.tokens[0] in line or here.owner in line]
