"""The official `openai` client against the server over a real socket, unchanged."""

import threading

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")
pytest.importorskip("openai", reason="the client comes with energylm[dev]")

import openai

from energylm.apps.security import ApiKeys, hash_token, new_token
from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer
from energylm.apps.serve.services import Services
from energylm.apps.serve.verb import ServeLimits
from energylm.config.sampling import JointSampling
from tests.apps.conftest import CHAT, serving

KEY = new_token()
PROMPT = "The old miller"


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
    limits = ServeLimits(max_waiting=2, max_tokens=64)
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


def test_chats(client, joint, lm):
    """Not streamed and streamed, by the client's own accumulation too."""
    options = {"model": "tiny", "messages": CHAT, "max_completion_tokens": 12, "seed": 6, "n": 2}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=1)
    expected = joint.sample_batch([lm.chat_ids(CHAT)] * 2, JointSampling(n=8, max_new_tokens=12), seed=6)
    assert [choice.message.content for choice in whole.choices] == [sample.text for sample in expected]
    assert whole.choices[0].message.role == "assistant" and whole.object == "chat.completion"
    assert "".join(token.token for token in whole.choices[0].logprobs.content) == whole.choices[0].message.content
    assert whole.model_extra["energylm"]["seed"] == 6
    parts = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in own) == choice.message.content
        assert own[-1].finish_reason == choice.finish_reason
    assert parts[-1].usage == whole.usage
    with client.chat.completions.stream(**options) as stream, pytest.raises(openai.LengthFinishReasonError) as cut:
        stream.get_final_completion()  # the client's own sum of all parts, which warns that the limit was reached
    assert [choice.message.content for choice in cut.value.completion.choices] == [sample.text for sample in expected]


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
