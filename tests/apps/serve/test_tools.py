"""`/v1/score`, `/v1/rerank`, `/v1/detect`, `/v1/models`, `/metrics`, keys, hosts and the page."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

from starlette.testclient import TestClient

from energylm.apps import security
from energylm.apps.security import ApiKeys, add_key, hash_token
from energylm.apps.serve.app import create_app
from energylm.apps.serve.schemas import DetectRequest, RerankRequest, ScoreRequest
from energylm.apps.serve.services import Services, load_services
from energylm.apps.serve.tools import detect_texts, rerank_lists, score_texts
from energylm.apps.serve.verb import Serve, ServeLimits, check_binding
from energylm.bundles.reranker import Reranker
from energylm.errors import ConfigError

TEXTS = ["The old miller mends a bridge.", "A boat.", "Her sister sells the winter coats, and a stranger paints."]


@pytest.fixture(scope="module")
def services(model_folder, energy_folder, detector_folder):
    config = Serve(
        language_model=str(model_folder), energy=str(energy_folder), detector=str(detector_folder), name="tiny"
    )
    return load_services(config)


@pytest.fixture(scope="module")
def client(services):
    return TestClient(create_app(services, ServeLimits(max_texts=5, max_text_characters=400)))


def test_scores_are_the_scorers(client, services):
    answer = client.post("/v1/score", json={"texts": TEXTS, "per": "token", "energy": True}).json()
    expected = services.scorer.token_scores(TEXTS)
    assert [facts["score"] for facts in answer["scores"]] == pytest.approx([facts.score for facts in expected])
    assert answer["scores"][0]["token_scores"][0][0] == expected[0].pieces[0]
    energies = services.energy.text_energies(TEXTS).tolist()
    assert [facts["energy"] for facts in answer["scores"]] == pytest.approx(energies, abs=1e-4)
    assert (
        "nats" in answer["convention"]
        and "energy" not in client.post("/v1/score", json={"texts": TEXTS[:1]}).json()["scores"][0]
    )
    by_token = client.post("/v1/score", json={"texts": TEXTS, "normalise": "token"}).json()["scores"]
    assert by_token[0]["score"] == pytest.approx(expected[0].score / expected[0].tokens)


def test_a_list_is_reranked_as_the_reranker_does(client, services):
    hypotheses = [("a goat", -1.0), ("", 0.0), ("the boats", -1.1), ("a boat.", -1.2)]
    body = {"hypotheses": [{"text": text, "score": score} for text, score in hypotheses], "weight": 0.3}
    results = client.post("/v1/rerank", json=body).json()["results"]
    expected = Reranker(services.scorer, weight=0.3).rerank(hypotheses)
    assert [result["index"] for result in results] == list(expected.order)
    assert results[0]["total"] == pytest.approx(results[0]["score"] + 0.3 * results[0]["model_score"])
    assert results[-1] == {"index": 1, "text": "", "score": 0.0, "model_score": None, "total": None}
    assert client.post("/v1/rerank", json={"hypotheses": body["hypotheses"]}).json()["weight"] == 0.5


def test_a_list_is_read_after_what_was_heard_before(services):
    """One of two requests of a batch has a context. Teeth: without it the scores are others."""
    hypotheses, context = [("a goat", -1.0), ("the boats", -1.1)], "the clerk counts"
    given = [{"text": text, "score": score} for text, score in hypotheses]
    bodies = [RerankRequest(hypotheses=given, context=context), RerankRequest(hypotheses=given)]
    after, alone = ([each.total for each in body.results] for body in rerank_lists(services, bodies))
    reranker = Reranker(services.scorer, context=3)
    assert after == pytest.approx(list(reranker.rerank(hypotheses, context=context).totals), abs=1e-5)
    assert alone == pytest.approx(list(reranker.rerank(hypotheses).totals), abs=1e-5)
    assert abs(after[0] - alone[0]) > 1e-3


def test_detections_are_the_detectors(client, services):
    texts = [" ".join(TEXTS * 3), "A boat.", "<b>&"]
    results = client.post("/v1/detect", json={"texts": texts}).json()["results"]
    for found, expected in zip(results, services.detector.predict(texts), strict=True):
        calibration = found.pop("calibration")
        assert calibration["asked_rate"] == 0.05
        blocks, expected_blocks = found.pop("blocks"), [block.to_json() for block in expected.blocks]
        assert [list(block.values())[:2] for block in blocks] == [
            [block["start"], block["end"]] for block in expected_blocks
        ]
        assert [block["score"] for block in blocks] == pytest.approx(
            [block["score"] for block in expected_blocks], abs=1e-5
        )
        rest = {name: value for name, value in expected.to_json().items() if name != "blocks"}
        assert found == pytest.approx(rest, abs=1e-5)
    assert results[1]["verdict"] == "abstains" and results[1]["probability"] is None


def test_requests_travel_together_and_come_back_apart(services):
    """Answers of several requests in one call are those of each alone."""
    scores = score_texts(services, [ScoreRequest(texts=TEXTS[:2], energy=True), ScoreRequest(texts=[TEXTS[2]])])
    assert [len(answer.scores) for answer in scores] == [2, 1] and scores[1].scores[0].energy is None
    assert all(isinstance(facts.energy, float) for facts in scores[0].scores)
    assert scores[1].scores[0].score == pytest.approx(services.scorer.score([TEXTS[2]])[0], abs=1e-3)
    lists = [Reranker(services.scorer).rerank([(text, 0.0) for text in of_list]) for of_list in (TEXTS, TEXTS[:2])]
    bodies = [RerankRequest(hypotheses=[{"text": text} for text in of_list]) for of_list in (TEXTS, TEXTS[:2])]
    for ranked, alone in zip(rerank_lists(services, bodies), lists, strict=True):
        assert [result.index for result in ranked.results] == list(alone.order)
        assert [result.total for result in ranked.results] == pytest.approx(list(alone.totals), abs=1e-3)
    first, second = detect_texts(services, [DetectRequest(texts=TEXTS[:1]), DetectRequest(texts=TEXTS[1:])])
    assert (len(first.results), len(second.results)) == (1, 2)


def _until(holds, *, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def _alike(first, second):
    """The same but for rounding, which depends on what is multiplied together."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_alike(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_alike, first, second))
    return first == pytest.approx(second, abs=1e-4) if isinstance(first, float) else first == second


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("score", {"texts": TEXTS[:1]}, "token_scores"),
        ("rerank", {"hypotheses": [{"text": text} for text in TEXTS]}, "list_scores"),
    ],
)
def test_requests_that_wait_are_read_in_one_call(services, monkeypatch, path, body, name):
    """The first is held until three more wait; then these share one call of the scorer. Teeth: a queue that takes them
    one by one calls it four times."""

    def calls(**limits):
        sizes, go = [], threading.Event()
        real = getattr(type(services.scorer), name)

        def counted(scorer, texts, **options):
            sizes.append(len(texts))
            go.wait(20)
            return real(scorer, texts, **options)

        monkeypatch.setattr(type(services.scorer), name, counted)
        with TestClient(create_app(services, ServeLimits(**limits))) as client, ThreadPoolExecutor(4) as people:
            asked = [people.submit(client.post, f"/v1/{path}", json=body)]
            _until(lambda: sizes)  # it is being read, so that those who come now must wait
            asked += [people.submit(client.post, f"/v1/{path}", json=body) for _ in range(3)]
            _until(lambda: client.get("/healthz").json()["waiting"] == 3)
            go.set()
            answers = [each.result() for each in asked]
        monkeypatch.undo()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(_alike(answer.json(), answers[0].json()) for answer in answers)
        return sizes

    one = len(body.get("texts", [0]))
    assert calls() == [one, 3 * one]
    assert calls(max_batch_rows=1) == [one] * 4


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("score", {"texts": []}, "texts: List should have at least 1 item"),
        ("score", {"texts": ["x", " "]}, "texts.1 is empty"),
        ("score", {"texts": "x"}, "texts: Input should be a valid list"),
        ("score", {"texts": ["x"] * 6}, "texts: 6 is more than the 5"),
        ("score", {"texts": ["x" * 401]}, "texts.0: 401 characters"),
        ("detect", {"texts": [3]}, "texts.0: Input should be a valid string"),
        ("rerank", {"hypotheses": [{"score": 1}]}, "hypotheses.0.text: Field required"),
        ("rerank", {"hypotheses": [{"text": "x", "score": 1e300}]}, "hypotheses.0.score: "),
        ("rerank", {"hypotheses": [{"text": "x"}], "weight": "much"}, "weight: "),
    ],
)
def test_what_cannot_be_judged_is_said(client, path, body, says):
    answer = client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]


def test_what_is_not_served_is_said():
    client = TestClient(create_app(Services("nothing")))
    hypotheses = {"hypotheses": [{"text": "x"}]}
    for path, body in (
        ("completions", {}),
        ("score", {"texts": ["x"]}),
        ("rerank", hypotheses),
        ("detect", {"texts": ["x"]}),
    ):
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_served"
    assert client.get("/v1/models").json()["data"] == []


def test_health_metrics_models_and_the_page(client):
    client.post("/v1/score", json={"texts": TEXTS})
    assert client.get("/healthz").json() == {"status": "ok", "model": "tiny", "waiting": 0, "running": 0}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in (
        'energylm_requests_total{path="/v1/score",status="200"}',
        'energylm_request_seconds_bucket{le="0.005",path="/v1/score"}',
        "energylm_queue_seconds_count",
        "energylm_batch_requests_sum",
        "energylm_queue_depth 0.0",
    ):
        assert name in metrics.text
    assert client.get("/v1/models/tiny:base").json()["id"] == "tiny:base"
    assert client.get("/v1/models/none").status_code == 404
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert client.get("/docs").status_code == 404  # it would load scripts from elsewhere


def test_keys_are_asked_for_and_kept_as_digests(services, tmp_path, monkeypatch):
    file = tmp_path / "keys.txt"
    keys = [add_key(file, note="a note\nof two lines"), add_key(file)]
    assert all(key not in file.read_text() for key in keys) and hash_token(keys[0]) in file.read_text()
    assert file.stat().st_mode & 0o077 == 0 and len(file.read_text().splitlines()) == 2
    monkeypatch.setenv(security.KEYS_VARIABLE, "a-key-of-the-environment-1, a-key-of-the-environment-2")
    loaded = ApiKeys.load(file)
    assert security.KEYS_VARIABLE not in security.os.environ
    client = TestClient(create_app(services, keys=loaded))
    good = [*keys, "a-key-of-the-environment-1", "a-key-of-the-environment-2"]
    bad = [
        "",
        "Bearer",
        f"Bearer {keys[0]}x",
        keys[0],
        f"Basic {keys[0]}",
        f"Bearer {hash_token(keys[0])}",
        "Bearer \xff",
    ]
    for path in ("/v1/models", "/metrics"):
        for header in bad:
            answer = client.get(path, headers={"authorization": header.encode("latin-1")})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert keys[0] not in answer.text
        assert client.get(path).status_code == 401
        for key in good:
            assert client.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert client.post("/v1/score", json={"texts": ["x"]}).status_code == 401
    assert client.post("/v1/completions", json={"nonsense": 1}).status_code == 401  # who may not ask learns nothing
    assert client.get("/healthz").status_code == client.get("/").status_code == 200
    document = client.get("/openapi.json").json()
    assert (
        document["paths"]["/v1/completions"]["post"]["security"]
        and "security" not in document["paths"]["/healthz"]["get"]
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [("a-plain-key\n", "line 1 is no digest"), ("# none\n\n", "holds no key"), ("", "holds no key")],
)
def test_a_file_without_keys_opens_nothing(tmp_path, content, says):
    (tmp_path / "keys").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        ApiKeys.load(tmp_path / "keys")


def test_short_keys_are_refused(monkeypatch):
    monkeypatch.setenv(security.KEYS_VARIABLE, "secret")
    with pytest.raises(ConfigError, match="fewer than 20 characters") as error:
        ApiKeys.load(None)
    assert "secret" not in str(error.value)


def test_other_names_for_this_machine_are_refused_without_keys(services):
    """A page of another site can give its own name to 127.0.0.1 and ask from a browser here; its name betrays it."""
    client = TestClient(create_app(services, hosts=("localhost", "127.0.0.1", "::1")))
    for host, status in (
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ):
        assert client.get("/healthz", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "has_keys", "insecure", "is_allowed"),
    [
        ("127.0.0.1", False, False, True),
        ("127.8.0.1", False, False, True),
        ("::1", False, False, True),
        ("localhost", False, False, True),
        ("0.0.0.0", False, False, False),
        ("::", False, False, False),
        ("192.168.1.2", False, False, False),
        ("localhost.example", False, False, False),
        ("0.0.0.0", True, False, True),
        ("0.0.0.0", False, True, True),
    ],
)
def test_without_keys_only_this_machine_may_ask(host, has_keys, insecure, is_allowed):
    if is_allowed:
        check_binding(host, has_keys=has_keys, insecure=insecure)
    else:
        with pytest.raises(ConfigError, match="open to other machines but there are no keys"):
            check_binding(host, has_keys=has_keys, insecure=insecure)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "nothing to serve"),
        ({"upstream": "http://x"}, "needs an energy"),
        ({"upstream": "x:80", "energy": "e"}, "is no address"),
        ({"energy": "e", "scorer": "s"}, "an energy needs a language model"),
        ({"language_model": "m", "proposals": 5000}, "more than limits.max_proposals"),
    ],
)
def test_what_cannot_be_served_is_said(values, says):
    with pytest.raises(ConfigError, match=says):
        Serve.checked(values)


def test_a_dry_run_finds_the_models(model_folder, detector_folder):
    said = Serve(language_model=str(model_folder), detector=str(detector_folder)).check()
    assert "would serve the language model" in said and "the detector" in said
