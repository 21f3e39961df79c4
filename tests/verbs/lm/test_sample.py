"""Sampling is the model's own sampling; truncation is reached by short names."""

import json

import pytest

from energylm import LanguageModel
from energylm.errors import ConfigError
from energylm.jobs.job import Job
from energylm.verbs import SampleLM
from energylm.verbs.lm.working import LMSamples

PROMPTS = ["The clerk", ""]


def test_same_draws_as_the_model(model_folder):
    model, lines = LanguageModel.from_pretrained(model_folder), []
    options = {"n": 2, "max_new_tokens": 4, "stop_at_eos": False, "seed": 3}
    result = SampleLM(language_model=str(model_folder), prompt=PROMPTS, top_k=5, **options).run(Job(emit=lines.append))
    expected = list(model.sample(PROMPTS, top_k=5, **options).rows())
    for sample, row, line in zip(result.samples, expected, lines, strict=True):
        assert sample.to_json() == {"prompt": PROMPTS[row.pop("context")], **row} == json.loads(line)
    assert LMSamples.from_json(json.loads(json.dumps(result.to_json()))) == result
    other = SampleLM(language_model=str(model_folder), prompt=PROMPTS, top_k=1, **options).run()
    assert other != result  # teeth: the truncation is not lost on the way


def test_short_names_and_the_nested_config_are_one_thing():
    short = SampleLM(language_model="x", top_k=3, temperature=0.5)
    assert short == SampleLM(language_model="x", truncation={"top_k": 3, "temperature": 0.5})
    assert short.prompt == ("",) and SampleLM(language_model="x", prompt="one").prompt == ("one",)
    with pytest.raises(ConfigError, match="top_k"):
        SampleLM.checked({"language_model": "x", "top_k": 0})
