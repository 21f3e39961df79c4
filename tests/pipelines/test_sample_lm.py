"""Sampling for the command line is the model's own sampling."""

from energylm import LanguageModel
from energylm.config.sampling import Truncation
from energylm.pipelines.sample_lm import sample_lm


def test_same_draws_as_the_model(model_folder):
    model = LanguageModel.from_pretrained(model_folder)
    options = {"n": 2, "max_new_tokens": 4, "truncation": Truncation(top_k=5), "stop_at_eos": False, "seed": 3}
    prompts = ["The clerk", ""]
    assert sample_lm(model, prompts, **options).to_json() == model.sample(prompts, **options).to_json()
