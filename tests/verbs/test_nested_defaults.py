"""A verb that gives a nested config other defaults keeps them, whichever of its keys are given and in whatever way."""

from typing import ClassVar

import pytest

from energylm.config.base import load_config
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig
from energylm.errors import ConfigError
from energylm.verbs.verb import Verb, options_of


class Learn(Verb):
    """Learn something."""

    shortcuts: ClassVar = {
        "preset": "training.preset",
        "steps": "training.steps",
        "learning_rate": "training.optimizer.learning_rate",
    }
    training: TrainingConfig = TrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-4), checkpoint=CheckpointConfig(every_steps=100)
    )


@pytest.mark.parametrize(
    "given",
    [
        {"steps": 7},
        {"training": {"steps": 7}},
        {"training": {"steps": 7, "optimizer": {"eps": 1e-5}}},
        {"training": TrainingConfig(steps=7)},
        {"training": TrainingConfig(seed=1), "steps": 7},
    ],
)
def test_keys_that_are_not_given_have_the_defaults_of_the_verb(given):
    training = Learn.checked(given).training
    assert (training.steps, training.optimizer.learning_rate, training.checkpoint.every_steps) == (7, 1e-4, 100)
    assert TrainingConfig(steps=7).optimizer.learning_rate == 1e-3  # teeth: the nested class has others


def test_a_preset_wins_over_the_defaults_and_what_is_given_over_the_preset():
    paper = Learn(preset="deng2020/joint-unit").training  # table 4: 3e-4
    assert (paper.optimizer.learning_rate, paper.steps, paper.checkpoint.every_steps) == (3e-4, 180_000, 100)
    assert Learn(preset="deng2020/joint-unit", learning_rate=0.5).training.optimizer.learning_rate == 0.5
    with pytest.raises(ConfigError, match="unknown preset 'deng'; known: deng2020/base-lm"):
        Learn.checked({"preset": "deng"})


def test_help_shows_the_default_of_the_verb_and_the_caller_keeps_what_it_gave():
    assert {option.name: option.default for option in options_of(Learn)}["learning_rate"] == 1e-4
    given = {"optimizer": {"eps": 1e-5}}
    assert Learn.model_validate({"training": given, "steps": 7}).training.steps == 7 and given == {
        "optimizer": {"eps": 1e-5}
    }


def test_all_keys_travel_as_json():
    verb = Learn(steps=7)
    assert Learn.model_validate_json(verb.model_dump_json()) == verb


def test_what_comes_later_wins_by_whichever_name(tmp_path):
    """File below flags below --set, and `steps` and `training.steps` are one key."""
    for text in ("steps: 1\n", "training: {steps: 1}\n"):
        (tmp_path / "file.yaml").write_text(text)

        def steps(*settings, **flags):
            return load_config(Learn, tmp_path / "file.yaml", settings=settings, overrides=flags).training.steps

        assert (steps(), steps(steps=2)) == (1, 2)
        assert steps("steps=3", steps=2) == steps("training.steps=3", steps=2) == 3
        assert steps("training.steps=4", "steps=3") == 3 and steps("steps=3", "training.steps=4") == 4
