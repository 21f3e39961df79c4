"""The official `openai` client against the server over a real socket, unchanged; the server as a proxy of itself."""

import asyncio
import threading

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")
pytest.importorskip("openai", reason="the client comes with energylm[dev]")

import httpx
import openai
import torch
from starlette.testclient import TestClient

from energylm.apps.security import ApiKeys, RefusedRequest, hash_token, new_token
from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer
from energylm.apps.serve.services import Services
from energylm.apps.serve.upstream import Proposal, ProposalChooser, Upstream
from energylm.apps.serve.verb import ServeLimits
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.config.sampling import JointSampling
from tests.apps.conftest import completion_task, serving

KEY = new_token()
PROMPT = "The old miller"


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def text_energy(model_folder):
    """Reads text, so that it is the same function here and behind a proxy."""
    energy = EnergyModel.from_encoder(model_folder, kind="unit", reads="text")
    energy.scale, energy.provenance["loss"] = 50.0, "nce"
    return energy


@pytest.fixture(scope="module")
def joint(lm, text_energy):
    return ResidualModel(lm, text_energy)


@pytest.fixture(scope="module")
def server(joint):
    """A server with a key; `gate` holds the models back while it is cleared, `entered` tells that they are asked."""
    completer, gate, entered = Completer(joint), threading.Event(), threading.Event()
    gate.set()
    original = completer.complete

    def complete(tasks, **options):
        entered.set()
        gate.wait(60)
        return original(tasks, **options)

    completer.complete = complete
    limits = ServeLimits(max_waiting=2, max_new_tokens=64)
    app = create_app(Services("tiny", completer, proposals=8), limits, ApiKeys([hash_token(KEY)]))
    with serving(app) as url:
        yield url, gate, entered


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_completions(client, joint):
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, seed=4, n=2, logprobs=1)
    expected = joint.sample_batch([PROMPT] * 2, JointSampling(n=8, max_new_tokens=10), seed=4)
    assert [choice.text for choice in answer.choices] == [sample.text for sample in expected]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].finish_reason in ("stop", "length") and answer.object == "text_completion"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(answer.choices[0].logprobs.token_logprobs) == len(answer.choices[0].logprobs.tokens)
    assert answer.model_extra["energylm"]["seed"] == 4
    extended = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=4, extra_body={"energy": {"proposals": 5, "details": True}}
    )
    assert len(extended.model_extra["energylm"]["candidates"]) == 5


def test_streaming(client):
    options = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "seed": 6, "stop": ["zzz"]}
    whole = client.completions.create(**options)
    parts = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage and parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny", "tiny:base"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_errors_have_the_clients_types(client, server):
    with pytest.raises(openai.BadRequestError, match="max_tokens: 65 is more than the 64") as bad:
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=65)
    assert bad.value.param == "max_tokens" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="there is no such model here"):
        client.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.AuthenticationError, match="a valid API key is needed"):
        with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="wrong", max_retries=0) as stranger:
            stranger.completions.create(model="tiny", prompt=PROMPT)


def test_a_full_queue_is_a_rate_limit_error_and_everyone_else_is_answered(client, server):
    """One request is held at the models and two wait: the fourth is refused, the others get their texts."""
    _, gate, entered = server
    gate.clear()
    entered.clear()
    answers, refusals = [], []

    def ask(seed):
        try:
            answers.append(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2, seed=seed))
        except openai.RateLimitError as error:
            refusals.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(refusals) < 5:
        assert any(thread.is_alive() for thread in threads[1:])
        threads[0].join(0.01)
    gate.set()
    for thread in threads:
        thread.join()
    assert (len(answers), len(refusals)) == (3, 5)
    assert all(int(error.response.headers["retry-after"]) >= 1 for error in refusals)
    assert {answer.energylm["seed"] for answer in answers} <= set(range(8))


def proxy_of(url, chooser, **options):
    upstream = Upstream(f"{url}/v1", key=KEY, **({"model": "tiny:base", "n": 64, "seconds": 60.0} | options))
    return TestClient(create_app(Services("proxy", chooser=chooser, proposals=8), upstream=upstream))


def test_a_proxy_of_our_own_server_gives_what_the_joint_model_gives(server, text_energy, joint):
    """The upstream samples the language model alone; with the same seed its candidates are those of the joint model's
    pools, and the proxy chooses among them by the same energy."""
    with proxy_of(server[0], ProposalChooser(text_energy)) as client:
        body = {"prompt": PROMPT, "n": 2, "max_tokens": 8, "seed": 9, "energy": {"details": True}}
        answer = client.post("/v1/completions", json=body).json()
        expected = joint.sample_batch([PROMPT] * 2, JointSampling(n=8, max_new_tokens=8), seed=9)
        assert [choice["text"] for choice in answer["choices"]] == [sample.text for sample in expected]
        assert [one["text"] for one in answer["energylm"]["candidates"]] == expected[0].candidates
        streamed = client.post("/v1/completions", json=body | {"stream": True})
        assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
        asked = client.post("/v1/completions", json={"prompt": [1, 2]})
        assert asked.status_code == 400 and "prompts are texts" in asked.json()["error"]["message"]
        asked = client.post("/v1/completions", json={"prompt": "x", "logprobs": 1})
        assert asked.status_code == 400 and "not offered with an upstream" in asked.json()["error"]["message"]
        plain = client.post("/v1/completions", json=body | {"energy": {"weights": "corrected"}}).json()
        assert "there is no language model here" in plain["energylm"]["warning"]


def test_a_proxy_in_several_calls_and_with_weights_of_its_own_model(server, text_energy, lm):
    with proxy_of(server[0], ProposalChooser(text_energy, lm), n=5) as client:
        body = {"prompt": PROMPT, "max_tokens": 6, "seed": 9, "energy": {"proposals": 8, "details": True}}
        answer = client.post("/v1/completions", json=body).json()
        candidates = answer["energylm"]["candidates"]
        assert len(candidates) == 8 and len({one["text"] for one in candidates}) > 1
        assert "exp(−energy) alone" not in (answer["energylm"]["warning"] or "")
        cooled = client.post("/v1/completions", json=body | {"temperature": 0.5}).json()
        assert "tells nothing of that" in cooled["energylm"]["warning"]
        for one in cooled["energylm"]["candidates"]:
            assert one["log_weight"] == pytest.approx(-one["energy"])
        greedy = client.post("/v1/completions", json=body | {"temperature": 0}).json()
        assert len(greedy["energylm"]["candidates"]) == 1


def test_corrected_weights_by_hand(text_energy, lm):
    """log w = log P_LM − log q − E, with the end token where the upstream stopped by itself."""
    proposals = (Proposal(" mends a bridge", False, -3.0, 3), Proposal(" sells", True, -5.0, 2))
    task = completion_task(prompts=(PROMPT,), proposals=2, weights="corrected", seed=1, details=True)
    (chosen,) = ProposalChooser(text_energy, lm).choose([(task, [proposals])])
    context = lm.codec.context(PROMPT)
    by_hand = []
    for one, ending in zip(proposals, ([], [lm.eos_token_id]), strict=True):
        ids = [*context, *lm.encode(one.text), *ending]
        scored = lm.token_log_probs(torch.tensor([ids]), torch.tensor([len(ids)]), first=len(context)).sum()
        by_hand.append(float(scored) - one.log_prob - float(text_energy.text_energies([PROMPT + one.text])))
    assert [one.log_weight for one in chosen.energylm.candidates] == pytest.approx(by_hand, abs=1e-3)
    silent = (Proposal(" x", False, None, 0),) * 2
    (told,) = ProposalChooser(text_energy, lm).choose([(task, [silent])])
    assert "tells no log-probabilities" in told.choices[0].energylm.warning


def completion(text="a", **values):
    return {"choices": [{"index": 0, "text": text, "finish_reason": "length", **values}]}


@pytest.mark.parametrize(
    ("reply", "status", "says"),
    [
        (
            httpx.Response(429, headers={"retry-after": "7"}, json={"error": {"message": "slow\ndown"}}),
            429,
            "slow down",
        ),
        (httpx.Response(400, json={"error": {"message": "too long"}}), 400, "refuses this: too long"),
        (httpx.Response(401, json={}), 502, "refuses the key"),
        (httpx.Response(500, text="<html>"), 502, "fails: status 500"),
        (httpx.Response(200, text="<html>"), 502, "cannot be read"),
        (httpx.Response(200, json={"choices": []}), 502, "gave 0 texts where 1 were asked for"),
        (httpx.Response(200, json={"choices": [{"index": 0, "text": 5}]}), 502, "is no completion"),
        (httpx.Response(200, json=[]), 502, "is no completion"),
        (httpx.ReadTimeout("slow"), 504, "did not answer within 2 seconds"),
        (httpx.ConnectError("down"), 502, "cannot be read (ConnectError)"),
    ],
)
def test_failures_of_the_upstream_are_one_line(reply, status, says):
    def handler(request):
        if isinstance(reply, Exception):
            raise reply
        return reply

    upstream = Upstream("http://up/v1", model="m", key=None, n=4, seconds=2.0)
    upstream._client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    with pytest.raises(RefusedRequest) as refused:
        asyncio.run(upstream.propose(completion_task(), logprobs=False))
    assert refused.value.status == status and says in str(refused.value)
    if status == 429:
        assert refused.value.headers["retry-after"] == "7"


@pytest.mark.parametrize(("refuses", "log_prob"), [(True, None), (False, -1.5)])
def test_log_probabilities_are_asked_for_and_done_without(refuses, log_prob):
    """An upstream that refuses `logprobs` is asked again without; one that tells them is believed."""
    bodies = []

    def handler(request):
        bodies.append(request.read().decode())
        if "/models" in str(request.url):
            return httpx.Response(200, json={"data": [{"id": "first"}]})
        if '"logprobs"' in bodies[-1] and refuses:
            return httpx.Response(400, json={"error": {"message": "no logprobs"}})
        return httpx.Response(200, json=completion(logprobs=None if refuses else {"token_logprobs": [-1.0, -0.5]}))

    upstream = Upstream("http://up/v1/", model=None, key="k", n=4, seconds=2.0)
    upstream._client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    ((proposal,),) = asyncio.run(upstream.propose(completion_task(top_k=3), logprobs=True))
    assert proposal.log_prob == log_prob and '"first"' in bodies[-1] and '"top_k":3' in bodies[-1].replace(" ", "")
