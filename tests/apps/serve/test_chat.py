"""`/v1/chat/completions`: seed for seed a completion after the template's ids, in the shapes of OpenAI's chats."""

import json
import math

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

import torch
from starlette.testclient import TestClient

from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer
from energylm.apps.serve.services import Services
from energylm.apps.serve.verb import ServeLimits
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.config.sampling import JointSampling
from tests.apps.conftest import CHAT, CHAT_TEMPLATE

LIMITS = ServeLimits(max_proposals=256, max_tokens=24, max_text_characters=500)


@pytest.fixture(scope="module")
def lm(model_folder):
    """Answers end with the tokenizer's own end token."""
    made = LanguageModel.from_pretrained(model_folder)
    made.tokenizer.chat_template = CHAT_TEMPLATE.replace("<|sep|>", made.tokenizer.eos_token)
    return made


@pytest.fixture(scope="module")
def joint(lm, energy_folder):
    return ResidualModel(lm, EnergyModel.from_pretrained(energy_folder))


@pytest.fixture(scope="module")
def client(joint):
    return client_of(joint)


def client_of(model):
    return TestClient(create_app(Services("tiny", Completer(model), proposals=8), LIMITS))


def ask(client, **body):
    answer = client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 10, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def contents(answer):
    return [choice["message"]["content"] for choice in answer["choices"]]


@pytest.mark.parametrize("model", ["tiny", "tiny:base"])
def test_an_answer_is_a_completion_after_the_template(client, lm, model):
    """Token for token and seed for seed, with what is told about the choice. Teeth: without the generation prompt, or
    as text that is read letter by letter, it is another."""
    options = {"model": model, "n": 3, "max_tokens": 10, "seed": 2**62 + 7, "top_k": 20, "energy": {"details": True}}
    answer = ask(client, **options, logprobs=True, top_logprobs=2)

    def completion(prompt):
        return client.post("/v1/completions", json={"prompt": prompt, "logprobs": 2, **options}).json()

    ids = lm.chat_ids(CHAT)
    whole = completion(ids)
    assert contents(answer) == [choice["text"] for choice in whole["choices"]]
    assert answer["usage"] == whole["usage"] and answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["energylm"] == whole["energylm"]
    for choice, other in zip(answer["choices"], whole["choices"], strict=True):
        assert choice["energylm"] == other["energylm"] and choice["finish_reason"] == other["finish_reason"]
        told, expected = choice["logprobs"]["content"], other["logprobs"]
        assert [token["token"] for token in told] == expected["tokens"]
        assert [token["logprob"] for token in told] == expected["token_logprobs"]
        for token, likeliest in zip(told, expected["top_logprobs"], strict=True):
            assert {likely["token"]: likely["logprob"] for likely in token["top_logprobs"]} == likeliest
            assert bytes(token["bytes"]).decode() == token["token"]
    rendered = lm.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    for wrong in (ids[: len(ids) - len(lm.encode("assistant: "))], rendered):
        assert [choice["text"] for choice in completion(wrong)["choices"]] != contents(answer)


@torch.no_grad()
def make_likely(lm, token):
    """Turn the token's row towards the state after the chat, so that it is written now and then."""
    network = lm.model.network
    after = network(torch.tensor([lm.chat_ids(CHAT)]), output_hidden_states=True)
    state_D, logit_V = after.hidden_states[-1][0, -1], after.logits[0, -1]
    wanted = logit_V.logsumexp(0) - math.log(5)
    network.get_output_embeddings().weight[token] = state_D * wanted / state_D.square().sum()


def test_an_answer_ends_with_the_templates_own_token(model_folder, energy_folder):
    """Which is not the tokenizer's end token here, so chats and completions travel apart. Teeth: a model that does not
    know of it writes on."""
    lm = LanguageModel.from_pretrained(model_folder)
    lm.tokenizer.chat_template = CHAT_TEMPLATE
    energy = EnergyModel.from_pretrained(energy_folder)
    answering, client = lm.for_chat(), client_of(ResidualModel(lm, energy))
    assert answering.eos_token_id != lm.eos_token_id
    make_likely(lm, answering.eos_token_id)
    options = JointSampling(n=8, max_new_tokens=20)
    ids = [lm.chat_ids(CHAT)] * 16
    expected = ResidualModel(answering, energy).sample_batch(ids, options, seed=4)
    assert contents(ask(client, n=16, max_tokens=20, seed=4)) == [sample.text for sample in expected]
    ended = [sample.tokens[0][-1] == answering.eos_token_id for sample in expected]
    reasons = [choice["finish_reason"] for choice in ask(client, n=16, max_tokens=20, seed=4)["choices"]]
    assert reasons == ["stop" if has_ended else "length" for has_ended in ended] and any(ended)
    unaware = ResidualModel(lm, energy).sample_batch(ids, options, seed=4)
    assert any(len(other.tokens[0]) > len(sample.tokens[0]) for other, sample in zip(unaware, expected, strict=True))


def test_shapes(client):
    answer = ask(client, seed=3)
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage", "energylm"}
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "energylm"} and choice["logprobs"] is None
    assert choice["message"] == {"role": "assistant", "content": contents(answer)[0], "refusal": None}
    parts = [{"type": "text", "text": "the clerk "}, {"type": "text", "text": "counts"}]
    assert contents(ask(client, seed=3, messages=[{"role": "user", "content": parts}, CHAT[1]])) == contents(answer)
    assert contents(ask(client, seed=3, max_tokens=None, max_completion_tokens=10)) == contents(answer)


@pytest.mark.parametrize("logprobs", [None, True])
def test_a_stream_adds_up_to_the_answer(client, logprobs):
    body = {"n": 2, "seed": 3, "logprobs": logprobs}
    whole = ask(client, **body)
    sent = {"messages": CHAT, "max_tokens": 10, **body, "stream": True, "stream_options": {"include_usage": True}}
    streamed = client.post("/v1/chat/completions", json=sent)
    *lines, end = [line.removeprefix("data: ") for line in streamed.text.strip().split("\n\n")]
    chunks = list(map(json.loads, lines))
    assert end == "[DONE]" and {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
    for choice in whole["choices"]:
        own = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant" and not any("role" in part["delta"] for part in own[1:])
        assert "".join(part["delta"].get("content", "") for part in own) == choice["message"]["content"]
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert own[-1]["energylm"] == choice["energylm"] and len(own) > 2
        if logprobs:
            told = [token for part in own[:-1] for token in part["logprobs"]["content"]]
            assert told == choice["logprobs"]["content"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0.role: Input should be 'system', 'user' or"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, "should be 'text'"),
        ({"messages": [{"role": "user", "content": "x" * 501}]}, "messages: 501 is more than the 500"),
        ({"messages": [{"role": "user", "content": "the boats " * 49}]}, "but the model holds 128"),
        ({"max_tokens": 25}, "max_tokens: 25 is more than the 24"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens and max_tokens differ"),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs"),
        ({"tools": [{"type": "function"}]}, "tools: "),
        ({"response_format": {"type": "json_object"}}, "response_format.type: "),
        ({"prompt": "x"}, "prompt: no such parameter"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(client, body, says):
    answer = client.post("/v1/chat/completions", json={"messages": CHAT, **body})
    error = answer.json()["error"]
    assert answer.status_code == 400 and says in error["message"] and "\n" not in error["message"]


def test_a_model_without_a_template_says_so(model_folder):
    answer = client_of(LanguageModel.from_pretrained(model_folder)).post(
        "/v1/chat/completions", json={"messages": CHAT}
    )
    assert answer.status_code == 400 and "has no chat template" in answer.json()["error"]["message"]
