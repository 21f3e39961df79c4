"""`/v1/completions`: the same texts as the models give when they are called, the law of the joint model, and errors.

The language of the first part is a table of 3 tokens: after a context of 1 there are 9 continuations of 2 tokens, so
the law of what the server returns is known. The second part has tiny networks and text.
"""

import asyncio
import json
import threading
from typing import get_args

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

import torch
from starlette.testclient import TestClient

from energylm.apps.serve.app import create_app
from energylm.apps.serve.completer import Completer, completion_response, cut_at_stop
from energylm.apps.serve.queue import ModelQueue, ServeMetrics
from energylm.apps.serve.schemas import Sampler
from energylm.apps.serve.services import Services, load_services
from energylm.apps.serve.verb import Serve, ServeLimits
from energylm.bundles import weighted_draws
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_texts import JointTexts
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.scorer import CausalScorer, Scorer
from energylm.bundles.text_energy import Energy
from energylm.config.sampling import JointSampling, Truncation
from energylm.energies.prefix_value import PrefixValue
from energylm.errors import ConfigError, TooFewAccepted
from energylm.registry import JOINT_SAMPLERS
from energylm.samplers.suffix_metropolis import tokens_of_a_chain
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_same_distribution,
    exact_joint,
    exact_language_model,
)
from tests.apps.conftest import completion_task

VOCABULARY, LENGTH, NEW = 3, 5, 2
TABLE = ResidualModel(
    TabularLanguageModel.random(VOCABULARY, LENGTH, seed=1), TabularEnergy.random(VOCABULARY, LENGTH, seed=5, scale=1.2)
)
SMALL = ServeLimits(max_prompts=16, max_choices=16, max_proposals=256, max_tokens=24, max_text_characters=500)


@pytest.fixture(scope="module")
def tabular():
    return TestClient(create_app(Services("table", Completer(TABLE))))


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def joint(lm, energy_folder):
    return ResidualModel(lm, EnergyModel.from_pretrained(energy_folder))


@pytest.fixture(scope="module")
def client(joint):
    return TestClient(create_app(Services("tiny", Completer(joint), proposals=8), SMALL))


def ask(client, **body):
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(answer):
    return [choice["text"] for choice in answer["choices"]]


def test_texts_have_the_joint_models_law(tabular):
    """2,048 texts from 8 seeds, 256 independent pools each, against enumeration by chi-square (false alarm 1e-4)."""
    drawn = [
        [int(token) for token in text.split()]
        for seed in range(8)
        for text in texts(ask(tabular, prompt=[[1]] * 16, n=16, max_tokens=NEW, seed=seed, energy={"proposals": 100}))
    ]
    counts = EXACT.counts(torch.tensor(drawn), torch.full((len(drawn),), NEW))
    assert_same_distribution(counts, EXACT.probabilities)
    with pytest.raises(AssertionError, match="chi-square"):  # teeth: the language model's own law is another
        assert_same_distribution(counts, BASE.probabilities)


def test_joint_sampling_over_http_is_that_of_the_model(client, joint):
    prompt, seed = "The old miller", 2**62 + 7
    answer = ask(client, prompt=prompt, n=3, max_tokens=12, seed=seed, top_k=20, energy={"proposals": 16})
    options = JointSampling(n=16, max_new_tokens=12, truncation=Truncation(top_k=20))
    expected = joint.sample_batch([prompt] * 3, options, seed=seed)
    assert texts(answer) == [sample.text for sample in expected]
    assert texts(answer)[0] == joint.sample(prompt, n=16, max_new_tokens=12, top_k=20, seed=seed).text
    for choice, sample in zip(answer["choices"], expected, strict=True):
        kept = sample.pools[0].kept[0]
        assert choice["energylm"]["energy"] == pytest.approx(float(sample.energies[kept]), abs=1e-4)
        assert choice["energylm"]["ess"] == pytest.approx(sample.ess, rel=1e-3)
    other = ask(client, prompt=prompt, n=3, max_tokens=12, seed=seed + 1, top_k=20, energy={"proposals": 16})
    assert texts(other) != texts(answer)  # teeth: the seed is read
    assert answer["usage"]["prompt_tokens"] == len(joint.lm.encode(prompt))
    assert answer["usage"]["completion_tokens"] == sum(len(sample.tokens[0]) for sample in expected)


def test_the_samplers_are_those_of_the_model():
    assert get_args(Sampler) == JOINT_SAMPLERS.names()


@pytest.mark.parametrize(
    ("own", "less"),
    [
        ({"sampler": "rejection", "bound": 0.5}, {}),
        ({"sampler": "quasi-rejection"}, {}),
        ({"sampler": "quasi-rejection", "bound": -1.5}, {"sampler": "quasi-rejection"}),
        ({"sampler": "independence"}, {}),
        ({"sampler": "suffix", "moves": 9}, {"sampler": "suffix"}),
        ({"sampler": "suffix", "moves": 6, "block_tokens": 3}, {"sampler": "suffix", "moves": 6}),
        ({"sampler": "smc"}, {}),
        ({"power": 3.0}, {}),
    ],
    ids=str,
)
def test_other_samplers_over_http_are_those_of_the_model(client, joint, own, less):
    """Teeth: with less said the texts are others, so each option is read."""
    prompt = "The old miller"
    asked = {"prompt": prompt, "n": 2, "max_tokens": 8, "seed": 11}
    answer = ask(client, **asked, energy={"proposals": 16, **own})
    expected = joint.sample_batch([prompt] * 2, JointSampling(n=16, max_new_tokens=8, **own), seed=11)
    assert texts(answer) == [sample.text for sample in expected]
    told = [choice["energylm"].get("report") for choice in answer["choices"]]
    if "sampler" in own:
        assert [report["verdict"] for report in told] == [sample.report.verdict for sample in expected]
        assert [report["sampler"] for report in told] == [own["sampler"]] * 2
    assert [choice["energylm"]["ess"] for choice in answer["choices"]] == pytest.approx(
        [sample.report.effective for sample in expected], rel=1e-3
    )
    assert texts(answer) != texts(ask(client, **asked, energy={"proposals": 16, **less}))


EXACT, BASE = (
    exact_joint(TABLE.lm, TABLE.energy, [1], max_new_tokens=NEW),
    exact_language_model(TABLE.lm, [1], max_new_tokens=NEW),
)
LARGEST = float((EXACT.log_prob - BASE.log_prob).max() + EXACT.log_partition)  # log-weight of any text: a bound


@pytest.mark.parametrize(
    "own",
    [
        {"sampler": "independence", "proposals": 100},
        {"sampler": "smc", "proposals": 100},
        {"sampler": "rejection", "proposals": 20, "bound": LARGEST},
        {"sampler": "suffix", "proposals": 2, "moves": 30},
    ],
    ids=lambda own: own["sampler"],
)
def test_their_texts_have_the_joint_models_law(tabular, own):
    """As above, 1,024 texts of each sampler."""
    options = {"n": 16, "max_tokens": NEW, "energy": own}
    answers = [ask(tabular, prompt=[[1]] * 16, seed=seed, **options) for seed in range(4)]
    drawn = [[int(token) for token in text.split()] for answer in answers for text in texts(answer)]
    counts = EXACT.counts(torch.tensor(drawn), torch.full((len(drawn),), NEW))
    assert_same_distribution(counts, EXACT.probabilities)
    with pytest.raises(AssertionError, match="chi-square"):  # teeth
        assert_same_distribution(counts, BASE.probabilities)


@pytest.mark.parametrize(
    "own",
    [
        {"sampler": "rejection", "bound": 0.5},
        {"sampler": "quasi-rejection", "bound": -1.5, "distance": 0.3},
        {"sampler": "suffix", "moves": 3, "block_tokens": 7, "power": 2.0},
        {"sampler": "smc", "block_tokens": 3},
    ],
    ids=lambda own: own["sampler"],
)
def test_every_option_arrives_as_it_was_said(joint, monkeypatch, own):
    """And what was not said has the default of `energylm generate`."""
    completer, seen = Completer(joint), []
    monkeypatch.setattr(
        completer,
        "complete",
        lambda tasks, is_wanted: [seen.append(task) or completion_response(task, []) for task in tasks],
    )
    client = TestClient(create_app(Services("tiny", completer)))
    ask(client, prompt="x", max_tokens=5, top_k=9, energy={"proposals": 6, "weights": "corrected", **own})
    truncation = Truncation(top_k=9)
    told = JointSampling(n=6, max_new_tokens=5, truncation=truncation, weights="corrected", **own)
    assert [task.joint_sampling for task in seen] == [told]


def test_the_lookahead_of_particles_is_the_servers(tmp_path):
    """Teeth: with another lookahead the same seeds give other texts."""
    PrefixValue([-20.0] * 4 + [1.0], [0.0] * 5, [], 9, 1.0, 1.0, 2.0).save(tmp_path)
    own = {"sampler": "smc", "block_tokens": 1}
    served = TestClient(create_app(Services("table", Completer(TABLE), lookahead=str(tmp_path))))
    told, usual = (
        texts(ask(client, prompt=[1], n=16, max_tokens=NEW, seed=4, energy={"proposals": 5, **own}))
        for client in (served, TestClient(create_app(Services("table", Completer(TABLE)))))
    )
    options = JointSampling(n=5, max_new_tokens=NEW, lookahead=str(tmp_path), **own)
    assert told == [sample.text for sample in TABLE.sample_batch([[1]] * 16, options, seed=4)] != usual
    with pytest.raises(ConfigError, match="neither 'energy' nor 'none'"):  # before it serves
        load_services(Serve(detector="unread", lookahead=str(tmp_path / "nothing")))


def test_an_unknown_sampler_is_refused(client):
    answer = client.post("/v1/completions", json={"prompt": "x", "energy": {"sampler": "prefix"}})
    assert answer.status_code == 400 and "quasi-rejection" in answer.text and "suffix" in answer.text


def test_too_few_moves_tell_nothing(tabular):
    """Two chains of one move have no R-hat and no effective draws, which JSON could not say as NaN."""
    (choice,) = ask(tabular, prompt=[1], max_tokens=NEW, energy={"sampler": "suffix", "proposals": 2, "moves": 1})[
        "choices"
    ]
    assert choice["energylm"]["ess"] is None and not choice["energylm"]["report"]["is_trusted"]
    assert "run longer" in choice["energylm"]["warning"]


TOO_HIGH = LARGEST + 30  # a bound, but e^30 draws are accepted once


def test_a_request_whose_candidates_are_all_refused_says_the_cure(tabular):
    """422, which OpenAI's clients do not try again by themselves; with the seed, since another one may do."""
    body = {"prompt": [1], "max_tokens": NEW, "seed": 17, "energy": {"sampler": "rejection", "proposals": 8}}
    body["energy"]["bound"] = TOO_HIGH
    for stream in (False, True):
        answer = tabular.post("/v1/completions", json={**body, "stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (422, "too_few_accepted", "energy.proposals")
        assert error["type"] == "invalid_request_error"
        for cure in ("8 candidates none was accepted", "draw more", "energy.bound", "smc", "seed was 17"):
            assert cure in error["message"]
    body["energy"]["bound"] = LARGEST - 0.5  # teeth: a bound that is none is another mistake
    answer = tabular.post("/v1/completions", json={**body, "energy": {**body["energy"], "proposals": 64}})
    assert answer.status_code == 400 and "above the bound" in answer.json()["error"]["message"]


def test_what_one_request_is_refused_does_not_harm_its_company():
    """Three travel in one batch behind a first one, and with the same options two of them share their acceptance; only
    those whose bound is too high fail, and the others have the texts that they have alone."""
    completer, go, entered, sizes = Completer(TABLE), threading.Event(), threading.Event(), []
    context = completer.read([1])

    def work(tasks, is_wanted):
        sizes.append(len(tasks))
        entered.set()
        go.wait(5)
        return completer.complete(tasks, is_wanted=is_wanted)

    def task(seed, bound):
        own = JointSampling(sampler="rejection", bound=bound)
        shape = {"prompts": ([1],), "contexts": (context,), "max_new_tokens": NEW, "proposals": 64}
        return completion_task(**shape, seed=seed, sampler=own)

    async def scene():
        async def stays():
            return False

        queue = ModelQueue({"complete": work}, limits=ServeLimits(gather_seconds=0.0), metrics=ServeMetrics())

        def put(task):
            return asyncio.create_task(queue.run("complete", task, rows=task.rows, has_left=stays))

        first = put(task(0, LARGEST))
        await asyncio.to_thread(entered.wait, 5)
        others = [put(task(1, LARGEST)), put(task(2, TOO_HIGH)), put(task(3, LARGEST))]
        await asyncio.sleep(0)
        go.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        await queue.close()
        return results

    _, good, refused, other = asyncio.run(scene())
    assert sizes == [1, 3, 1, 1, 1]  # together, then each alone
    assert isinstance(refused, TooFewAccepted)
    for result, seed in ((good, 1), (other, 3)):
        (alone,) = completer.complete([task(seed, LARGEST)])
        assert [choice.text for choice in result.answer.choices] == [choice.text for choice in alone.choices]
    with pytest.raises(TooFewAccepted):  # teeth: together all would fail
        completer.complete([task(1, LARGEST), task(2, TOO_HIGH)])


def test_sampling_without_an_energy_is_that_of_the_language_model(client, lm):
    prompts = ["A stranger", "Seven lamps"]
    expected = lm.sample(prompts, n=2, max_new_tokens=9, top_p=0.9, temperature=0.7, seed=5)
    options = {"prompt": prompts, "n": 2, "max_tokens": 9, "top_p": 0.9, "temperature": 0.7, "seed": 5}
    flat = [text for of_prompt in expected.texts for text in of_prompt]
    assert texts(ask(client, model="tiny:base", **options)) == flat
    assert texts(ask(client, energy={"proposals": 1}, **options)) == flat
    ids = [lm.codec.context(prompt) for prompt in prompts]
    assert texts(ask(client, model="tiny:base", **(options | {"prompt": ids}))) == flat


def tasks_of(completer):
    """Six requests that have nothing in common."""
    rows = [
        {"prompts": ("The council",), "max_new_tokens": 12, "proposals": 16, "seed": 3},
        {"prompts": ("A sailor carries a letter, and the old miller",), "n": 2, "max_new_tokens": 9, "top_k": 5}
        | {"proposals": 16, "seed": 4, "logprobs": 2},
        {"prompts": ("Her",), "max_new_tokens": 10, "top_p": 0.8, "temperature": 1.3, "proposals": 9, "seed": 3},
        {"prompts": ("A stranger paints",), "n": 3, "max_new_tokens": 20, "seed": 4, "logprobs": 1},
        {"prompts": ("The clerk",), "max_new_tokens": 11, "temperature": 0.5, "seed": 9},
        {"prompts": ("The clerk",), "max_new_tokens": 3, "temperature": 0, "proposals": 16, "seed": 9},
    ]
    return [completion_task(**row, contexts=tuple(map(completer.read, row["prompts"]))) for row in rows]


def test_a_request_is_answered_the_same_in_any_company(joint):
    completer = Completer(joint)
    tasks = tasks_of(completer)
    together = completer.complete(tasks)
    for task, answers in zip(tasks, together, strict=True):
        (alone,) = completer.complete([task])
        assert [choice.text for choice in answers.choices] == [choice.text for choice in alone.choices]
        assert [choice.finish_reason for choice in answers.choices] == [
            choice.finish_reason for choice in alone.choices
        ]
        for choice, other in zip(answers.choices, alone.choices, strict=True):
            if choice.logprobs is not None:
                assert choice.logprobs.token_logprobs == pytest.approx(other.logprobs.token_logprobs, abs=1e-4)
    shifted = completer.complete(tasks[1:])  # teeth: another seed in the same company is seen
    (first,) = completer.complete(tasks[:1])
    assert shifted[0].choices[0].text == together[1].choices[0].text != first.choices[0].text


def test_requests_share_one_call_of_the_engine(joint, monkeypatch):
    calls, original = [], weighted_draws.stream_continuations

    def counting(decoder, contexts, **options):
        calls.append((len(contexts), options["n"], options["seed"], options["max_new_tokens"]))
        return original(decoder, contexts, **options)

    monkeypatch.setattr(weighted_draws, "stream_continuations", counting)
    completer = Completer(joint)
    completer.complete(tasks_of(completer)[:3])
    assert calls == [(4, 16, [3, 4, 4, 3], [12, 9, 9, 10])]


def test_logprobs_are_the_language_models(client, lm):
    drawn = lm.sample(["A boat"], n=1, max_new_tokens=8, seed=11)
    answer = ask(client, model="tiny:base", prompt="A boat", max_tokens=8, seed=11, logprobs=3)
    told = answer["choices"][0]["logprobs"]
    assert sum(told["token_logprobs"]) == pytest.approx(float(drawn.continuations.log_prob[0, 0]), abs=1e-3)
    assert "".join(told["tokens"]) == texts(answer)[0]
    assert all(len(likeliest) <= 3 for likeliest in told["top_logprobs"])
    for own, likeliest, piece in zip(told["token_logprobs"], told["top_logprobs"], told["tokens"], strict=True):
        assert own <= max(likeliest.values()) + 1e-6
        assert piece not in likeliest or likeliest[piece] == pytest.approx(own, abs=1e-6)
    assert ask(client, prompt="A boat", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [{}, {}]


def test_temperature_zero_is_greedy(client, lm):
    greedy = lm.sample(["The"], n=1, max_new_tokens=6, top_k=1).texts[0][0]
    assert texts(ask(client, prompt="The", n=2, max_tokens=6, temperature=0)) == [greedy, greedy]


def test_stop_cuts_the_chosen_text(client):
    whole = ask(client, prompt="The clerk", max_tokens=20, seed=2, logprobs=0)
    text = texts(whole)[0]
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    cut = ask(client, prompt="The clerk", max_tokens=20, seed=2, stop=["zzzz", stop], logprobs=0)
    assert texts(cut) == [text[: text.index(stop)]]
    assert cut["choices"][0]["finish_reason"] == "stop" and whole["choices"][0]["finish_reason"] == "length"
    count = len(cut["choices"][0]["logprobs"]["tokens"])
    assert 0 < count < len(whole["choices"][0]["logprobs"]["tokens"])
    assert cut_at_stop("abcabc", ["c", "b"]) == "a" and cut_at_stop("abc", []) == "abc"


def test_details_show_all_candidates_and_the_base(client, joint):
    answer = ask(client, prompt="The", n=2, max_tokens=5, seed=8, energy={"proposals": 6, "details": True})
    facts, samples = answer["energylm"], joint.sample_batch(["The"] * 2, JointSampling(n=6, max_new_tokens=5), seed=8)
    assert [candidate["text"] for candidate in facts["candidates"]] == samples[0].candidates
    assert [candidate["log_weight"] for candidate in facts["candidates"]] == pytest.approx(
        samples[0].log_weights.tolist(), abs=1e-4
    )
    assert facts["base"] == [sample.candidates[0] for sample in samples]
    assert facts["ess"] == pytest.approx(samples[0].ess, rel=1e-3) and facts["seed"] == 8
    for sampler, has_base in (("independence", True), ("suffix", False), ("smc", False)):  # led candidates are not it
        led = ask(client, prompt="The", max_tokens=5, energy={"proposals": 6, "details": True, "sampler": sampler})
        assert ("base" in led["energylm"]) is has_base and len(led["energylm"]["candidates"]) == 6
    drawn = ask(client, prompt="The", max_tokens=5)["energylm"]["seed"]
    assert 0 <= drawn < 2**53 and drawn != ask(client, prompt="The", max_tokens=5)["energylm"]["seed"]


@pytest.mark.parametrize(
    ("body", "choice", "facts"),
    [
        ({}, {"energy", "log_weight", "ess", "largest_share", "warning"}, {"seed", "warning"}),
        ({"model": "table:base"}, None, {"seed", "warning"}),
        ({"model": "table:base", "energy": {"details": True}}, None, {"seed", "warning", "candidates", "base"}),
        (
            {"energy": {"details": True, "proposals": 3}},
            {"energy", "log_weight", "ess", "largest_share", "warning"},
            {"seed", "warning", "candidates", "ess", "base"},
        ),
    ],
)
def test_which_keys_are_sent(tabular, body, choice, facts):
    """What nobody asked for is left out; what a client may look for is there, if only as null."""
    answer = ask(tabular, prompt=[1], max_tokens=NEW, seed=3, **body)
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage", "energylm"}
    assert set(answer["energylm"]) == facts
    (text,) = answer["choices"]
    assert set(text) == {"text", "index", "logprobs", "finish_reason", "energylm"} and text["logprobs"] is None
    assert (text["energylm"] and set(text["energylm"])) == choice
    told = ask(tabular, prompt=[1], max_tokens=NEW, seed=3, logprobs=1, **body)["choices"][0]["logprobs"]
    assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


def test_candidates_are_written_out_only_for_those_who_ask(tabular, monkeypatch):
    """A pool of 64 texts costs more to decode than to choose from. Teeth: with details it is decoded."""
    decoded, original = [], JointTexts.new_texts

    def noting(self, context, sequences):
        decoded.extend(sequences)
        return original(self, context, sequences)

    monkeypatch.setattr(JointTexts, "new_texts", noting)
    ask(tabular, prompt=[1], max_tokens=NEW, seed=3)
    assert len(decoded) < 64
    ask(tabular, prompt=[1], max_tokens=NEW, seed=3, energy={"details": True})
    assert len(decoded) >= 64


def events(client, **body):
    answer = client.post("/v1/completions", json={**body, "stream": True})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    assert not set("<>&") & set(answer.text)
    *parts, end = [line.removeprefix("data: ") for line in answer.text.strip().split("\n\n")]
    assert end == "[DONE]"
    return [json.loads(part) for part in parts]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_stream_adds_up_to_the_answer(client, logprobs):
    body = {"prompt": "The council", "n": 2, "max_tokens": 10, "seed": 3, "logprobs": logprobs}
    whole, parts = ask(client, **body), events(client, **body, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        own = [
            part["choices"][0] for part in parts if part["choices"] and part["choices"][0]["index"] == choice["index"]
        ]
        assert len(own) > 2 and "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        if logprobs is not None:
            told = [value for part in own[:-1] for value in part["logprobs"]["token_logprobs"]]
            assert told == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-5)
    assert parts[-1]["usage"] == whole["usage"] and parts[-1]["choices"] == []
    assert events(client, **body)[-1]["usage"] is None


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"prompt": "x", "model": "gpt-9"}, 404, "there is tiny, tiny:base"),
        ({"prompt": [999_999]}, 400, "token id 999999 came"),
        ({"prompt": "x", "max_tokens": 25}, 400, "max_tokens: 25 is more than the 24"),
        ({"prompt": "x", "n": 17}, 400, "n: 17 is more than the 16"),
        ({"prompt": ["x"] * 17}, 400, "prompt: 17 is more than the 16"),
        ({"prompt": "x" * 501}, 400, "prompt: 501 is more than the 500"),
        ({"prompt": "x", "energy": {"proposals": 257}}, 400, "energy.proposals: 257 is more than"),
        ({"prompt": "the boats " * 49}, 400, "but the model holds 128"),
        ({"prompt": "x", "temperature": 0.001}, 400, "give 0 (greedy) or 0.01 at least"),
        ({"prompt": "x", "temperature": 2.1}, 400, "temperature: Input should be less than or equal to 2"),
        ({"prompt": "x", "top_p": 0}, 400, "top_p: Input should be greater than 0"),
        ({"prompt": "x", "top_k": 3, "energy": {"top_k": 4}}, 400, "top_k and energy.top_k differ"),
        ({"prompt": []}, 400, "prompt: "),
        ({"prompt": [[]]}, 400, "prompt.0: "),
        ({"prompt": ["x", 3]}, 400, "prompt"),
        ({"prompt": "x", "n": True}, 400, "n: Input should be a valid integer"),
        ({"prompt": "x", "seed": 2**63}, 400, "seed: "),
        ({"prompt": "x", "stop": ""}, 400, "stop: "),
        ({"prompt": "x", "echo": True}, 400, "echo: "),
        ({"prompt": "x", "best_of": 5}, 400, "best_of: "),
        ({"prompt": "x", "logit_bias": {"5": 1.0}}, 400, "logit_bias: "),
        ({"prompt": "x", "frequency_penalty": 0.5}, 400, "frequency_penalty: "),
        ({"prompt": "x", "energy": {"proposal": 5}}, 400, "energy.proposal: no such parameter"),
        ({"prompt": "x", "energy": {"sampler": "rejection"}}, 400, "energy.bound: sampler rejection needs it"),
        ({"prompt": "x", "energy": {"bound": 1.0}}, 400, "of rejection and quasi-rejection, but the sampler is resa"),
        ({"prompt": "x", "energy": {"moves": 5, "sampler": "smc"}}, 400, "energy.moves is an option of suffix, but"),
        ({"prompt": "x", "energy": {"sampler": "suffix", "moves": 0}}, 400, "energy.moves: Input should be greater"),
        ({"prompt": "x", "energy": {"power": 0}}, 400, "energy.power: Input should be greater than 0"),
        ({"prompt": "x", "energy": {"power": 2.0}, "model": "tiny:base"}, 400, "energy.power: only candidates of"),
        ({"prompt": "x", "<script>": 1}, 400, "no such parameter"),
        ({"prompt": "x", "energy": {"proposals": 200}, "n": 16, "max_tokens": 24}, 200, ""),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(joint, monkeypatch, body, status, says):
    """The last one can be done, by the limits of requests; the draws themselves are left out here."""
    completer = Completer(joint)
    monkeypatch.setattr(
        completer, "complete", lambda tasks, is_wanted: [completion_response(task, []) for task in tasks]
    )
    client = TestClient(create_app(Services("tiny", completer), SMALL))
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert says in error["message"] and "\n" not in error["message"] and "<" not in answer.text


def test_the_product_of_what_is_asked_is_limited(joint):
    client = TestClient(create_app(Services("tiny", Completer(joint)), ServeLimits(max_request_tokens=999)))
    answer = client.post("/v1/completions", json={"prompt": "x", "n": 2, "max_tokens": 10, "energy": {"proposals": 50}})
    assert answer.status_code == 400 and "1,000 is more than the 999" in answer.json()["error"]["message"]
    # 10 chains write 9 tokens once and once a move: 10 · 9 · 11 = 990; with the moves left out 100 of them would be 90
    chains = {"prompt": "x", "max_tokens": 9, "energy": {"proposals": 10, "sampler": "suffix", "moves": 10}}
    assert client.post("/v1/completions", json=chains).status_code == 200
    chains["energy"]["moves"] = 11
    message = client.post("/v1/completions", json=chains).json()["error"]["message"]
    assert message.startswith("prompts × n × proposals × max_tokens × (moves + 1): 1,080 is more than the 999")
    chains["energy"] |= {"moves": 5, "block_tokens": 3}  # after 3, 6 and 9 tokens: 10 · 6 · 18
    assert "1,080 is more" in client.post("/v1/completions", json=chains).json()["error"]["message"]


def test_chains_count_as_what_they_write():
    """In the queue a request of chains takes as many rows as it draws continuations."""
    own = JointSampling(sampler="suffix", moves=4, block_tokens=5)
    task = completion_task(max_new_tokens=10, n=3, proposals=2, sampler=own)
    assert task.tokens_drawn == 3 * 2 * tokens_of_a_chain(10, 5, 4) == 3 * 2 * 5 * 15
    assert task.rows == 45
    assert completion_task(max_new_tokens=10, n=3, proposals=2).rows == 6
    assert completion_task(max_new_tokens=10, n=3, sampler=own).rows == 3  # without an energy there are no chains


def test_texts_that_the_energy_forbids_have_neither_energy_nor_weight(lm):
    """+∞ is no JSON. Where nothing is allowed, that is said; scores of forbidden texts come without an energy."""
    allowed = ResidualModel(lm, Energy.from_pattern("e"))
    client = TestClient(create_app(Services("tiny", Completer(allowed), scorer=Scorer(CausalScorer(lm)))))
    answer = ask(client, prompt="The", max_tokens=4, seed=1, energy={"proposals": 64, "details": True})
    candidates = answer["energylm"]["candidates"]
    assert all(candidate["energy"] == (0 if "e" in candidate["text"] else None) for candidate in candidates)
    assert {candidate["energy"] for candidate in candidates} == {0, None} and "e" in texts(answer)[0]
    scores = client.post("/v1/score", json={"texts": ["the", "a boy"], "energy": True}).json()["scores"]
    assert scores[0]["energy"] == 0 and "energy" not in scores[1]
    nothing = ResidualModel(lm, Energy.from_pattern("^never written$"))
    refused = TestClient(create_app(Services("tiny", Completer(nothing)))).post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 400 and "the energy allows none" in refused.json()["error"]["message"]


def test_a_server_without_an_energy_says_so(lm):
    client = TestClient(create_app(Services("plain", Completer(lm))))
    answer = client.post("/v1/completions", json={"prompt": "x", "energy": {"proposals": 5}})
    assert answer.status_code == 400 and "no energy" in answer.json()["error"]["message"]
    facts = ask(client, prompt="x", max_tokens=3, seed=1, energy={"details": True})
    assert facts["energylm"]["candidates"] == [] and facts["energylm"]["base"] == texts(facts)
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["plain"]
