"""Proposals of another server: our own server behind a proxy, importance weights by enumeration, and failures.

The upstream of the exact tests is a table of 3 words: it has 9 texts of 2 words, so that a pool which holds each once
shows every weight. Over draws from q the chooser's law is ∝ q · w, whatever the number of draws.
"""

import asyncio
import json
import math

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

import httpx
import torch
from starlette.testclient import TestClient

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer
from energylm.apps.serve.services import Services
from energylm.apps.serve.upstream import Proposal, ProposalChooser, Upstream
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_energy import Energy
from energylm.config.sampling import JointSampling
from tests.apps.conftest import CHAT, completion_task, serving

PROMPT = "The old miller"
WORDS = (" lamp", " boat", " bridge")
FIRST_V = torch.tensor([0.4, -0.7, 1.1], dtype=torch.float64)  # logits of the upstream's first word
SECOND_VV = torch.tensor([[0.2, 1.0, -1.2], [0.9, -0.3, 0.1], [-0.1, 0.1, 0.2]], dtype=torch.float64)


@pytest.fixture(scope="module")
def server(joint):
    with serving(create_app(Services("tiny", Completer(joint), proposals=8))) as url:
        yield url


def proxy_of(url, chooser, *, name="proxy", **options):
    upstream = Upstream(f"{url}/v1", key=None, **({"model": "tiny:base", "n": 64, "seconds": 60.0} | options))
    return TestClient(create_app(Services(name, chooser=chooser, proposals=8), upstream=upstream))


def test_a_proxy_of_our_own_server_gives_what_the_joint_model_gives(server, text_energy, joint):
    """The upstream samples the language model alone; with the same seed its candidates are those of the joint model's
    pools, and the proxy chooses among them by the same energy."""
    with proxy_of(server, ProposalChooser(text_energy)) as client:
        body = {"prompt": PROMPT, "n": 2, "max_tokens": 8, "seed": 9, "energy": {"details": True}}
        answer = client.post("/v1/completions", json=body).json()
        expected = joint.sample_batch([PROMPT] * 2, JointSampling(n=8, max_new_tokens=8), seed=9)
        assert [choice["text"] for choice in answer["choices"]] == [sample.text for sample in expected]
        assert [candidate["text"] for candidate in answer["energylm"]["candidates"]] == expected[0].candidates
        streamed = client.post("/v1/completions", json=body | {"stream": True})
        assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
        asked = client.post("/v1/completions", json={"prompt": [1, 2]})
        assert asked.status_code == 400 and "prompts are texts" in asked.json()["error"]["message"]
        asked = client.post("/v1/completions", json={"prompt": "x", "logprobs": 1})
        assert asked.status_code == 400 and "not offered with an upstream" in asked.json()["error"]["message"]
        asked = client.post("/v1/completions", json=body | {"energy": {"weights": "corrected"}})
        assert asked.status_code == 400 and "has no language model to correct" in asked.json()["error"]["message"]


def test_a_proxy_that_bears_its_upstreams_name_chooses_all_the_same(server, text_energy):
    """`NAME:base` is a language model alone only where there is a NAME beside it."""
    with proxy_of(server, ProposalChooser(text_energy), name="tiny:base") as client:
        body = {"model": "tiny:base", "prompt": PROMPT, "max_tokens": 4, "energy": {"details": True}}
        assert len(client.post("/v1/completions", json=body).json()["energylm"]["candidates"]) == 8


def test_a_proxy_in_several_calls_and_with_weights_of_its_own_model(server, text_energy, lm):
    with proxy_of(server, ProposalChooser(text_energy, lm), n=5) as client:
        body = {"prompt": PROMPT, "max_tokens": 6, "seed": 9, "energy": {"proposals": 8, "details": True}}
        answer = client.post("/v1/completions", json=body).json()
        candidates = answer["energylm"]["candidates"]
        assert len(candidates) == 8 and len({candidate["text"] for candidate in candidates}) > 1
        by_energy = [-candidate["energy"] for candidate in candidates]
        assert [candidate["log_weight"] for candidate in candidates] != pytest.approx(by_energy, abs=0.1)
        cooled = client.post("/v1/completions", json=body | {"temperature": 0.5})
        assert cooled.status_code == 400 and "would be biased" in cooled.json()["error"]["message"]
        by_paper = body | {"temperature": 0.5, "energy": {"weights": "paper", "details": True}}
        for candidate in client.post("/v1/completions", json=by_paper).json()["energylm"]["candidates"]:
            assert candidate["log_weight"] == pytest.approx(-candidate["energy"])
        greedy = client.post("/v1/completions", json=body | {"temperature": 0}).json()
        assert len(greedy["energylm"]["candidates"]) == 1


def test_corrected_weights_by_hand(text_energy, lm):
    """log w = log P_LM − log q − E, with the end token where the upstream stopped by itself."""
    proposals = (Proposal(" mends a bridge", False, -3.0, 3), Proposal(" sells", True, -5.0, 2))
    task = completion_task(prompts=(PROMPT,), proposals=2, weights="corrected", seed=1, details=True)
    (chosen,) = ProposalChooser(text_energy, lm).choose([(task, [proposals])])
    context = lm.codec.context(PROMPT)
    by_hand = []
    for proposal, ending in zip(proposals, ([], [lm.eos_token_id]), strict=True):
        ids = [*context, *lm.encode(proposal.text), *ending]
        scored = lm.token_log_probs(torch.tensor([ids]), torch.tensor([len(ids)]), first=len(context)).sum()
        by_hand.append(float(scored) - proposal.log_prob - float(text_energy.text_energies([PROMPT + proposal.text])))
    assert [candidate.log_weight for candidate in chosen.energylm.candidates] == pytest.approx(by_hand, abs=1e-3)
    silent = (Proposal(" x", False, None, 0),) * 2
    with pytest.raises(RefusedRequest, match="does not tell the log-probability of every token"):
        ProposalChooser(text_energy, lm).check_pools(task, [silent])


def test_a_proxy_of_our_own_server_answers_chats_as_the_joint_model_does(server, lm):
    """All draws of a chat are copies of one context: the first text is the joint model's, the others are of its law."""
    energy = Energy.from_function(lambda texts: [text.count("e") for text in texts], better="higher", beta=2.0)
    with proxy_of(server, ProposalChooser(energy), n=5) as client:
        body = {"messages": CHAT, "n": 3, "max_tokens": 8, "seed": 9, "energy": {"details": True, "proposals": 5}}
        answer = client.post("/v1/chat/completions", json=body).json()
        sample = ResidualModel(lm, energy).chat(CHAT, n=5, max_new_tokens=8, seed=9)
        assert answer["choices"][0]["message"]["content"] == sample.text
        assert [candidate["text"] for candidate in answer["energylm"]["candidates"]] == sample.candidates
        assert len(answer["choices"]) == 3 and len(set(answer["energylm"]["base"])) == 3
        asked = client.post("/v1/chat/completions", json={"messages": CHAT, "logprobs": True})
        assert asked.status_code == 400 and "not offered with an upstream" in asked.json()["error"]["message"]


def word_log_probs(body, *, raw):
    """(3,), (3, 3) log-probabilities of the words, as they are drawn for this request or, raw, before that."""

    def drawn(logits):
        if raw:
            return logits.log_softmax(-1)
        cooled = logits / body["temperature"]
        lowest = cooled.topk(body.get("top_k", 3)).values[..., -1:]
        return cooled.masked_fill(cooled < lowest, -math.inf).log_softmax(-1)

    return drawn(FIRST_V), drawn(SECOND_VV)


def table_server(request, *, tells):
    """Each text that this request could get, once, in the shape that was asked for."""
    body = json.loads(request.read())
    own, told = word_log_probs(body, raw=False), word_log_probs(body, raw=tells == "raw")
    pairs = [(i, j) for i in range(3) for j in range(3) if math.isfinite(own[0][i] + own[1][i, j])]
    choices = []
    for index, (i, j) in enumerate(pairs):
        words, values = [WORDS[i], WORDS[j]], [float(told[0][i]), float(told[1][i, j])]
        text = "".join(words)
        if "messages" in body:
            assert request.url.path == "/v1/chat/completions" and body["messages"] == CHAT and body["logprobs"] is True
            content = [{"token": word, "logprob": value} for word, value in zip(words, values, strict=True)]
            shape = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}}
        else:
            assert request.url.path == "/v1/completions" and body["prompt"] == PROMPT
            shape = {"text": text, "logprobs": {"tokens": words, "token_logprobs": values}}
        choices.append({"index": index, "finish_reason": "length", **shape})
    return httpx.Response(200, json={"choices": choices})


def law_of_choices(lm, body, *, is_chat, tells, declared):
    """(texts, the chooser's law over draws of the upstream, the target), both normalised."""
    energy = Energy.from_function(lambda texts: [0.3 * len(text) for text in texts], better="lower")
    upstream = Upstream("http://up/v1", model="m", key=None, n=16, seconds=2.0)
    upstream._client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: table_server(request, tells=tells))
    )
    services = Services("proxy", chooser=ProposalChooser(energy, lm, told=declared))
    path, what = ("/v1/chat/completions", {"messages": CHAT}) if is_chat else ("/v1/completions", {"prompt": PROMPT})
    size = body.get("top_k", 3) ** 2
    sent = body | what | {"max_tokens": 2, "energy": {"proposals": size, "details": True}}
    answer = TestClient(create_app(services, upstream=upstream)).post(path, json=sent)
    if answer.status_code != 200:
        return answer.json()["error"]["message"]
    candidates = answer.json()["energylm"]["candidates"]
    first_V, second_VV = word_log_probs(body, raw=False)
    q = {WORDS[i] + WORDS[j]: first_V[i] + second_VV[i, j] for i in range(3) for j in range(3)}
    context = lm.chat_ids(CHAT) if is_chat else lm.codec.context(PROMPT)
    law, target = [], []
    for candidate in candidates:
        ids = [*context, *lm.encode(candidate["text"])]
        scored = lm.token_log_probs(torch.tensor([ids]), torch.tensor([len(ids)]), first=len(context)).double().sum()
        law.append(q[candidate["text"]] + candidate["log_weight"])
        target.append(scored - 0.3 * len(candidate["text"]))
    return torch.stack(law).softmax(0), torch.stack(target).softmax(0)


@pytest.mark.parametrize("is_chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize(
    ("body", "tells"),
    [
        ({"temperature": 1.0}, "raw"),
        ({"temperature": 1.0}, "processed"),
        ({"temperature": 0.6}, "processed"),
        ({"temperature": 1.0, "top_k": 2}, "processed"),
    ],
)
def test_corrected_weights_aim_at_our_own_joint_model(lm, body, tells, is_chat):
    """q · w ∝ P_LM · exp(−E) on all that the upstream can write, whatever the upstream's own law."""
    law, target = law_of_choices(lm, body, is_chat=is_chat, tells=tells, declared=tells)
    torch.testing.assert_close(law.log(), target.log(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize("body", [{"temperature": 0.6}, {"temperature": 1.0, "top_k": 2}])
def test_weights_that_would_be_biased_are_refused(lm, body, is_chat):
    """Raw log-probabilities are not those of a cooled or truncated proposal. Teeth: declared to be, they give another
    law than the target's."""
    refusal = law_of_choices(lm, body, is_chat=is_chat, tells="raw", declared="raw")
    assert "would be biased" in refusal and "--upstream-logprobs processed" in refusal and "'paper'" in refusal
    law, target = law_of_choices(lm, body, is_chat=is_chat, tells="raw", declared="processed")
    assert (law.log() - target.log()).abs().max() > 0.1


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "log_prob"),
    [
        ([" a", " b"], "length", -3.0),
        ([" a", " b", "</s>"], "stop", -6.0),  # by the end token's name
        ([" a", " b", ""], "stop", -6.0),
        ([" a", " b"], "stop", None),  # the end is not told
        ([], "stop", None),
    ],
)
@pytest.mark.parametrize("is_chat", [False, True], ids=["completion", "chat"])
def test_the_end_token_belongs_to_a_texts_probability(tokens, finish_reason, log_prob, is_chat):
    """q of a text that ended is q of its tokens and of the end; P_LM counts it, too."""
    values = [-1.0, -2.0, -3.0][: len(tokens)]
    if is_chat:
        content = [{"token": token, "logprob": value} for token, value in zip(tokens, values, strict=True)]
        shape = {"message": {"content": " a b"}, "logprobs": {"content": content}}
    else:
        shape = {"text": " a b", "logprobs": {"tokens": tokens, "token_logprobs": values}}
    reply = httpx.Response(200, json={"choices": [{"index": 0, "finish_reason": finish_reason, **shape}]})
    upstream = Upstream("http://up/v1", model="m", key=None, n=4, seconds=2.0)
    upstream._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply))
    task = completion_task(prompts=(tuple(CHAT),) if is_chat else ("x",))
    ((proposal,),) = asyncio.run(upstream.propose(task, logprobs=True))
    assert proposal.log_prob == log_prob and proposal.text == " a b"


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
        return httpx.Response(
            200, json=completion(logprobs=None if refuses else {"token_logprobs": [-1.0, -0.5], "tokens": ["a", ""]})
        )

    upstream = Upstream("http://up/v1/", model=None, key="k", n=4, seconds=2.0)
    upstream._client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    ((proposal,),) = asyncio.run(upstream.propose(completion_task(top_k=3), logprobs=True))
    assert proposal.log_prob == log_prob and '"first"' in bodies[-1] and '"top_k":3' in bodies[-1].replace(" ", "")
