"""The page at `/` in a real headless Chromium, in front of a server that gives the answers of the API from a table."""

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from energylm.apps.security import RefusedRequest, SafeJSON, add_security_headers
from energylm.apps.serve import schemas as schemas
from energylm.apps.serve.app import page_router
from tests.apps.conftest import ENTER, HOSTILE, RIGHT, TAB, serving

pytestmark = pytest.mark.xdist_group("browser")
KEY = "the-key"
TEXT = "🙂 The sailor 𝒎ends a bridge. The council remembers it. Bridge the the of lamps."


def fake_server():
    """Three answers by hand, in the server's own schemas; `app.state.asked` keeps what came."""
    app = FastAPI()
    add_security_headers(app)
    app.include_router(page_router())
    app.state.asked, app.state.key = [], None

    async def asked(request: Request, kind: type[BaseModel]):
        app.state.asked.append(await request.json())
        return kind.model_validate_json(await request.body())

    def refused(request: Request) -> Response | None:
        if app.state.key and request.headers.get("authorization") != f"Bearer {app.state.key}":
            return RefusedRequest(401, "this server wants a key; send Authorization: Bearer KEY").answer()
        return None

    @app.post("/v1/completions")
    async def completions(request: Request):
        body = await asked(request, schemas.CompletionRequest)
        if body.prompt == "refuse":
            return RefusedRequest(400, "prompt: <b>too long</b>, at most 4 tokens", param="prompt").answer()
        texts = [" a boat came.", f" {HOSTILE}", " nothing came.", " boats boats boats."]
        energies, log_weights = [-1.5, -2.0, 0.0, 3.0], [0.0, 1.0, -1.0, -8.0]
        rows = zip(texts, energies, log_weights, strict=True)
        candidates = [{"text": text, "energy": energy, "log_weight": weight} for text, energy, weight in rows]
        facts = {"log_weight": 0.0, "ess": 1.84, "largest_share": 0.67, "warning": None}
        chosen = [
            {
                "index": number,
                "text": texts[number % 2],
                "logprobs": None,
                "finish_reason": "length",
                "energylm": {"energy": energies[number % 2], **facts},
            }
            for number in range(body.n)
        ]
        base = [texts[3], texts[2], texts[0]][: body.n]
        details = {"seed": 0, "candidates": candidates, "ess": 1.84, "base": base}
        whole = {"id": "x", "created": 0, "model": "fake", "choices": chosen, "energylm": details}
        return refused(request) or SafeJSON(schemas.CompletionResponse.model_validate(whole).model_dump())

    @app.post("/v1/detect")
    async def detect(request: Request):
        (text,) = (await asked(request, schemas.DetectRequest)).texts
        numbers = {"score": 1.0, "threshold": 0.5, "log_odds": 3.6, "tokens_used": 20, "tokens": 20}
        found = {
            "verdict": "machine",
            "reason": "above the threshold for 0.01 false positives",
            "probability": 0.973,
            "blocks": [{"start": 0, "end": 29, "score": -2.0}, {"start": 29, "end": len(text), "score": 4.0}],
            "calibration": {"asked_rate": 0.01},
        }
        whole = schemas.DetectResponse.model_validate({"results": [found | numbers]})
        return refused(request) or SafeJSON(whole.model_dump())

    @app.post("/v1/rerank")
    async def rerank(request: Request):
        body = await asked(request, schemas.RerankRequest)
        scores = [-30.0, -20.0, -26.0][: len(body.hypotheses)]
        pairs = zip(body.hypotheses, scores, strict=True)
        ranked = [
            {
                "index": n,
                **hypothesis.model_dump(),
                "model_score": score,
                "total": hypothesis.score + body.weight * score,
            }
            for n, (hypothesis, score) in enumerate(pairs)
        ]
        best_first = sorted(ranked, key=lambda entry: -entry["total"])
        whole = {"model": "fake", "convention": "nats", "weight": body.weight, "results": best_first}
        return refused(request) or SafeJSON(schemas.RerankResponse.model_validate(whole).model_dump())

    return app


@pytest.fixture(scope="module")
def server():
    app = fake_server()
    with serving(app) as address:
        yield app, address


@pytest.fixture
def at(server, browser):
    """`at("detect")` opens that panel; nothing may be left in the console afterwards."""
    app, address = server
    app.state.asked.clear()
    app.state.key = None

    def go(panel):
        browser.driver.get("about:blank")
        browser.driver.get(f"{address}/#{panel}" if panel else f"{address}/")
        shown = [panel.get_attribute("id") for panel in browser.find_all("[role=tabpanel]") if panel.is_displayed()]
        assert shown == [panel or "generate"]
        return browser

    yield go
    assert browser.complaints() == []


def submit(browser, panel):
    browser.find(f"#{panel} [type=submit]").click()
    browser.until(lambda: browser.find(f"#{panel} .result").is_displayed())


def write(browser, selector, text):
    browser.driver.execute_script("arguments[0].value = arguments[1]", browser.find(selector), text)


def test_base_and_joint_samples_side_by_side(at, server):
    browser = at("generate")
    browser.pictures("page-empty")
    write(browser, "#prompt", "On the fourth morning")
    write(browser, "#n", "2")
    submit(browser, "generate")
    assert server[0].state.asked == [
        {
            "prompt": "On the fourth morning",
            "n": 2,
            "max_tokens": 40,
            "temperature": 1,
            "seed": 0,
            "energy": {"proposals": 64, "top_k": None, "details": True},
        }
    ]
    base = [element.text for element in browser.find_all("#base-samples li")]
    joint = [element.text for element in browser.find_all("#joint-samples li")]
    assert base[0] == "On the fourth morning boats boats boats.\nenergy 3.00, weight < 0.1 %"
    # e^0, e^1, e^-1, e^-8 share 1: 24.5 %, 66.5 %, 9.0 %, 0.0 %
    assert joint[0] == "On the fourth morning a boat came.\nenergy −1.50, weight 24.5 %"
    assert joint[1] == f"On the fourth morning {HOSTILE}\nenergy −2.00"  # its own candidates were not told
    assert browser.text("#generate .facts") == (
        "1.8 effective of 4 candidates (ESS)ESS of each sample: 1.8, 1.8"
        "The energy prefers some candidates, and enough of them."
    )
    left, right = (browser.find(selector).rect for selector in ("#base-samples", "#joint-samples"))
    assert left["y"] == right["y"] and left["x"] < right["x"]
    browser.find("#generate .more summary").click()
    rows = [row.text for row in browser.find_all("#candidates tr")]
    assert [row.split(" %")[0] for row in rows] == ["66.5", "24.5", "9.0", "< 0.1"]
    assert browser.driver.title == "energylm" and not browser.find_all("main b")  # the hostile text is text
    browser.pictures("page-generate")
    assert not browser.is_wider_than_the_phone()


def test_blocks_in_colour_with_verdict_and_calibration(at, server):
    browser = at("detect")
    write(browser, "#text", TEXT)
    submit(browser, "detect")
    assert server[0].state.asked == [{"texts": [TEXT]}]
    assert (
        browser.text("#verdict") == "A machine" and browser.text("#verdict-probability") == "97.3 % likely a machine’s"
    )
    assert browser.text("#reason") == "Above the threshold for 0.01 false positives."
    assert "at most 1.0 % of human texts" in browser.text("#calibration")
    # the server counts characters, of which some are two in a browser's strings
    marks = browser.find_all("#blocks mark")
    assert [mark.get_property("textContent") for mark in marks] == [TEXT[:29], TEXT[29:]]
    colours = [mark.value_of_css_property("background-color") for mark in marks]
    assert "114, 178" in colours[0] and "213, 94" in colours[1]
    assert [element.text for element in browser.find_all("#blocks small")] == ["−2.0", "4.0"]
    browser.pictures("page-detect")
    assert not browser.is_wider_than_the_phone()


def test_an_n_best_list_reranked(at, server):
    browser = at("rerank")
    submit(browser, "rerank")
    assert server[0].state.asked[0]["weight"] == 0.5
    assert [hypothesis["score"] for hypothesis in server[0].state.asked[0]["hypotheses"]] == [-4.1, -4.3, -4.4]
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in browser.find_all("#ranked tr")]
    assert [row[:3] for row in rows] == [
        ["1", "2\n▲ up 1", "the weather was fine that day"],
        ["2", "3\n▲ up 1", "the weather was find that day"],
        ["3", "1\n▼ down 2", "the whether was fine that day"],
    ]
    assert rows[0][3:] == ["−4.30", "−20.00", "−14.30"]
    browser.pictures("page-rerank")
    assert not browser.is_wider_than_the_phone()


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("a boat\n\n  a goat ", [("a boat", 0), ("a goat", 0)]),
        ("-1e1\ta boat\n−.5 | a goat", [("a boat", -10), ("a goat", -0.5)]),
        ('[{"text": "a <b>boat</b>", "score": -1}, "a goat"]', [("a <b>boat</b>", -1), ("a goat", 0)]),
    ],
)
def test_lists_are_read_in_each_form(at, server, written, sent):
    browser = at("rerank")
    write(browser, "#hypotheses", written)
    submit(browser, "rerank")
    assert server[0].state.asked[0]["hypotheses"] == [{"text": text, "score": score} for text, score in sent]


def test_mistakes_are_told_in_place(at, server):
    browser = at("rerank")
    write(browser, "#hypotheses", "-1 a boat\na goat")
    browser.find("#rerank [type=submit]").click()
    assert browser.text("#rerank .status") == "Line 2 has no score, but others do: “a goat”"
    assert server[0].state.asked == []
    browser.find("#tab-generate").click()
    write(browser, "#prompt", "refuse")
    browser.find("#generate [type=submit]").click()
    browser.until(lambda: browser.text("#generate .status") == "prompt: <b>too long</b>, at most 4 tokens")
    browser.picture("page-refused")
    browser.complaints()  # the refused request's own line


def test_a_server_with_keys_asks_for_one(at, server):
    browser = at("rerank")
    server[0].state.key = KEY
    browser.find("#rerank [type=submit]").click()
    browser.until(lambda: "wants a key" in browser.text("#rerank .status"))
    assert browser.driver.switch_to.active_element.get_attribute("id") == "api-key"
    browser.complaints()
    browser.keys(KEY)
    submit(browser, "rerank")
    assert browser.find_all("#ranked tr")


def test_by_keyboard_alone(at):
    """Tab to the tabs, an arrow to the next panel, Ctrl+Enter to ask; the answer gets the focus."""
    browser = at("")
    browser.keys(TAB, TAB, TAB)  # skip link, key, tabs
    assert browser.driver.switch_to.active_element.get_attribute("id") == "tab-generate"
    browser.keys(RIGHT, RIGHT)  # right, right
    assert (
        browser.find("#rerank").is_displayed() and browser.find("#tab-rerank").get_attribute("aria-selected") == "true"
    )
    browser.keys(TAB)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "hypotheses"
    browser.keys(ENTER, control=True)
    browser.until(lambda: browser.find_all("#ranked tr"))
    browser.until(lambda: browser.driver.switch_to.active_element.text == "Result")
    browser.keys(TAB)
    assert browser.driver.switch_to.active_element.get_attribute("aria-label") == "New order"


def test_every_field_has_a_name_and_every_picture_of_colour_a_word(at):
    """What a screen reader reads: no control without a name, one h1, headings in order, no id twice."""
    browser = at("generate")
    unnamed = browser.driver.execute_script(
        "return [...document.querySelectorAll('input, textarea, button, meter')]"
        ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()))"
        ".map((e) => e.outerHTML)"
    )
    assert unnamed == []
    ids = [element.get_attribute("id") for element in browser.find_all("[id]")]
    assert len(ids) == len(set(ids)) and len(browser.find_all("h1")) == 1


def test_in_front_of_the_real_server(browser, model_folder, energy_folder, detector_folder):
    """The three panels once more, with tiny models behind them: the server does what the table above promises."""
    from energylm.apps.serve.app import create_app
    from energylm.apps.serve.services import load_services
    from energylm.apps.serve.verb import Serve

    folders = {"language_model": model_folder, "energy": energy_folder, "detector": detector_folder}
    config = Serve(**{name: str(folder) for name, folder in folders.items()})
    text = "The clerk counts the boats. A sailor mends the bridge. " * 6
    with serving(create_app(load_services(config))) as address:
        browser.driver.get(f"{address}/")
        for field, value in (("#prompt", "The clerk"), ("#n", "2"), ("#proposals", "16"), ("#max-tokens", "8")):
            write(browser, field, value)
        submit(browser, "generate")
        assert len(browser.find_all("#base-samples li")) == len(browser.find_all("#joint-samples li")) == 2
        assert len(browser.find_all("#candidates tr")) == 16
        assert 1 <= float(browser.text("#generate .facts strong")) <= 16
        assert "energy" in browser.text("#joint-samples .numbers") and "weight" in browser.text(
            "#base-samples .numbers"
        )

        browser.find("#tab-detect").click()
        write(browser, "#text", text)
        submit(browser, "detect")
        assert browser.text("#verdict") in ("A person", "A machine", "No verdict") and browser.text("#reason")
        stretches = browser.driver.execute_script(
            "return [...byId('blocks').childNodes].filter((n) => n.nodeName !== 'SMALL').map((n) => n.textContent)"
        )
        assert "".join(stretches) == text and len(browser.find_all("#block-rows tr")) > 1

        browser.find("#tab-rerank").click()
        submit(browser, "rerank")
        totals = [float(cell.text.replace("−", "-")) for cell in browser.find_all("#ranked td:last-child")]
        assert len(totals) == 3 and totals == sorted(totals, reverse=True)
        assert browser.complaints() == []
