"""The study as people see it, in a real headless Chromium: by mouse and by keyboard, on a phone and on a desk."""

import threading
from contextlib import contextmanager

import pytest

from energylm.apps.security import hash_token, new_token
from energylm.apps.study.app import create_study_app
from energylm.apps.study.store import StudyStore
from tests.apps.conftest import DESK, ENTER, HOSTILE, PHONE, serving

pytestmark = pytest.mark.xdist_group("browser")  # one worker: a browser takes most of a core


@contextmanager
def study(folder, *, raters=1):
    """The study served; gives its address, its store and the raters' links."""
    with StudyStore.open(folder) as store, serving(create_study_app(store)) as address:
        links = []
        for number in range(raters):
            token = new_token()
            store.add_rater(f"rater {number + 1}", hash_token(token))
            links.append(f"{address}/r/{token}")
        yield address, store, links


def shown_item(browser):
    """The identifier of the comparison on the page; None on a page without one."""
    found = browser.find_all("[name=item]")
    return found[0].get_attribute("value") if found else None


def right_side(browser):
    """Where the text stands that people write; left on comparisons of models."""
    return "right" if "mend the bridge" in browser.text("#text-right") else "left"


def next_after(browser, item):
    browser.until(lambda: browser.find("h1") and shown_item(browser) != item)


def answer_by_mouse(browser, side):
    item = shown_item(browser)
    browser.find(f"#text-{side}").click()  # anywhere on the card
    assert browser.find(f"[value={side}]").is_selected()
    browser.find("#answer button").click()
    next_after(browser, item)


def answer_by_keyboard(browser, side):
    item = shown_item(browser)
    browser.keys({"left": "1", "right": "2", "tie": "3"}[side])
    browser.until(lambda: browser.find(f"[value={side}]").is_selected())
    browser.keys(ENTER)
    next_after(browser, item)


def test_a_rater_from_link_to_last_pair_with_a_browser_restart_in_the_middle(start_browser, browser, make_study):
    with study(make_study(pairs=4, qualification=3, ties=True)) as (_, store, [link]):
        first = start_browser()
        first.driver.get(link)
        assert first.text("#place") == "1 of 3"
        assert first.find("details.how").get_property("open")
        first.pictures("rater-first")
        seen = []
        for answer in (answer_by_mouse, answer_by_keyboard, answer_by_mouse):
            seen.append(shown_item(first))
            answer(first, right_side(first))
        assert first.text("#place") == "1 of at most 6"
        assert first.driver.switch_to.active_element.get_attribute("id") == "question"  # a screen reader reads on here
        seen.append(shown_item(first))
        answer_by_keyboard(first, "tie" if right_side(first) == "left" else "right")
        opened = shown_item(first)
        first.find("#text-left").click()  # chosen, but not sent
        assert first.complaints() == []
        first.close()

        second = browser  # another profile: nothing but the link
        second.size(*PHONE)
        second.driver.get(link)
        assert shown_item(second) == opened, "the open comparison comes back"
        assert not second.find_all("input:checked")
        second.size(*DESK)
        while shown_item(second):
            seen.append(shown_item(second))
            answer_by_keyboard(second, right_side(second))
        assert second.text("h1") == "That was the last one. Thank you!"
        second.pictures("rater-end")
        second.driver.refresh()
        assert second.text("h1") == "That was the last one. Thank you!"
        assert second.complaints() == []

        stored = list(store.answers())
        assert [answer.item for answer in stored] == seen and len(set(seen)) == 3 + 4 + 2
        assert all(answer.seconds > 0 for answer in stored)
        assert [answer.preferred for answer in stored if answer.kind == "qualification"] == ["real"] * 3
        assert store.progress().raters[0].stage == "finished"


def test_a_failed_attention_check_is_seen_by_the_owner_and_the_owner_alone(browser, make_study):
    with study(make_study(pairs=6, qualification=2), raters=3) as (address, store, links):
        browser.driver.get(links[0])
        while shown_item(browser):  # reads the warm-up, and then always takes the wrong side
            right = right_side(browser)
            warm_up = browser.text("#top strong") == "Warm-up"
            answer_by_keyboard(browser, right if warm_up else {"left": "right", "right": "left"}[right])
        browser.driver.get(links[1])
        for _ in range(2):
            answer_by_keyboard(browser, {"left": "right", "right": "left"}[right_side(browser)])
        assert browser.text("h1") == "Thank you for trying"
        browser.pictures("rater-failed")

        token = new_token()
        store.set_owner_hash(hash_token(token))
        browser.driver.get(f"{address}/owner")
        browser.find("#token").send_keys("guess")
        browser.find("form button").click()
        browser.until(lambda: browser.find("#wrong"))
        browser.picture("owner-refused")
        browser.complaints()  # the refusal's own line
        browser.find("#token").send_keys(token)
        browser.find("form button").click()
        browser.until(lambda: browser.find("#votes"))
        assert token not in browser.driver.page_source and token not in browser.driver.current_url
        rows = [
            [cell.text for cell in row.find_elements("css selector", "th, td")] for row in browser.find_all("tbody tr")
        ]
        assert [row[:5] for row in rows] == [
            ["rater 1", "finished", "2 of 2", "0 of 2 too few", "6"],
            ["rater 2", "did not pass", "0 of 2", "–", "0"],
            ["rater 3", "not begun", "–", "–", "0"],
        ]
        assert browser.text("#votes").startswith("6") and browser.text("#checks").startswith("0 %")
        browser.pictures("owner")
        assert not browser.is_wider_than_the_phone()
        browser.find("header button").click()
        browser.until(lambda: browser.find("#token"))
        assert browser.complaints() == []


def test_a_prefix_with_a_script_tag_shows_as_text(browser, make_study):
    with study(make_study(pairs=1, qualification=0)) as (_, _, [link]):
        browser.driver.get(link)
        if browser.text("#prefix") != HOSTILE:  # the check came first
            answer_by_keyboard(browser, right_side(browser))
        assert browser.text("#prefix") == HOSTILE
        assert browser.driver.title != "stolen" and not browser.find_all("main b, main script")
        browser.pictures("rater-hostile")
        assert not browser.is_wider_than_the_phone()
        assert browser.complaints() == []


def test_an_answer_survives_a_server_that_is_away_for_a_while(browser, make_study):
    """The vote is sent again by the page until the server has it; it is stored once."""
    folder, token, away = make_study(pairs=2, qualification=0), new_token(), threading.Event()
    with StudyStore.open(folder) as store:
        inner = create_study_app(store)

        async def app(scope, receive, send):
            if away.is_set():
                await send({"type": "http.response.start", "status": 502, "headers": []})
                return await send({"type": "http.response.body", "body": b""})
            return await inner(scope, receive, send)

        store.add_rater("one", hash_token(token))
        with serving(app) as address:
            browser.driver.get(f"{address}/r/{token}")
            item = shown_item(browser)
            away.set()
            browser.find("#text-left").click()
            browser.find("#answer button").click()
            browser.until(lambda: "not reached the study" in browser.text("#status"))
            browser.picture("rater-offline")
            assert list(store.answers()) == []
            away.clear()
            next_after(browser, item)
            assert [(answer.item, answer.choice) for answer in store.answers()] == [(item, "left")]
    browser.complaints()


def test_the_page_works_without_a_script(browser, make_study):
    with study(make_study(pairs=2, qualification=0)) as (_, store, [link]):
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        try:
            browser.driver.get(link)
            item = shown_item(browser)
            browser.find("#answer button").click()  # nothing chosen: the browser itself asks for a choice
            browser.find("#text-right").click()
            browser.find("#answer button").click()
            next_after(browser, item)
        finally:
            browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        assert [(answer.item, answer.choice, answer.seconds) for answer in store.answers()] == [(item, "right", 0)]
