"""The demo in small, on a made-up corpus: the numbers it reports are its model's own, and a second run is a no-op."""

import json
import math

import pytest

from energylm import LanguageModel
from energylm.config.demo import DemoConfig
from energylm.data.corpus import Corpus
from energylm.errors import ConfigError, EnergyLMError
from energylm.pipelines.demo import perplexity_table, run_demo, train_config, validation_perplexity


@pytest.fixture(scope="module")
def config(texts_folder):
    return DemoConfig(
        source=str(texts_folder),
        vocabulary_size=300,
        window=24,
        steps=30,
        batch=8,
        validation_windows=20,
        prompts=("The clerk", "A <b>sailor</b>"),
        new_tokens=5,
    )


@pytest.fixture(scope="module")
def made(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "out"
    return run_demo(config, output=output)


@pytest.fixture(scope="module")
def measured(made, config):
    """The perplexity of the saved model, loaded and measured once more."""
    return validation_perplexity(LanguageModel.from_pretrained(made.run.model), Corpus.open(made.corpus_folder), config)


@pytest.fixture(scope="module")
def sections(made):
    return json.loads((made.report.parent / "results.json").read_text(encoding="utf-8"))["sections"]


def test_the_report_holds_loss_numbers_and_samples(made, sections):
    assert {section["kind"] for section in sections.values()} == {"text", "table", "plot", "samples"}
    page = made.report.read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert "A &lt;b&gt;sailor&lt;/b&gt;" in page


def test_the_model_learned_something(made, sections):
    """Thirty steps on sentences of three small word lists: better than all tokens equally likely, by far."""
    uniform, trained = sections["perplexity-on-unseen-documents"]["rows"]
    assert uniform["perplexity"] == 300
    assert trained["perplexity"] < 100
    training, validation = sections["loss"]["plot"]["series"]
    assert validation["x"] == [5, 10, 15, 20, 25, 30]
    assert training["y"][-1] < training["y"][0]


def test_the_perplexity_is_the_saved_models_own(made, measured, sections):
    """Two routes: the training engine's validation of the best weights, and the folder loaded and measured again."""
    _, trained = sections["perplexity-on-unseen-documents"]["rows"]
    assert trained["perplexity"] == pytest.approx(measured.value, rel=1e-6)
    assert made.run.best_perplexity.nats_per_token == pytest.approx(measured.nats_per_token, abs=1e-4)


def test_uniform_bits_per_byte_by_hand(measured):
    """V tokens equally likely: log2 V bits a token, so tokens · log2 V / bytes."""
    uniform = perplexity_table(measured, vocabulary_size=300).records()[0]
    assert uniform["bits per byte"] == pytest.approx(measured.tokens * math.log2(300) / measured.bytes)


def test_samples_of_each_prompt_by_each_proposal(sections):
    samples = sections["samples"]["samples"]
    assert [(sample["prompt"], sample["label"]) for sample in samples] == [
        ("The clerk", "top-k 10"),
        ("The clerk", "untruncated"),
        ("A <b>sailor</b>", "top-k 10"),
        ("A <b>sailor</b>", "untruncated"),
    ]
    assert len({sample["continuation"] for sample in samples}) > 1


def test_a_second_run_does_nothing_again(made, config):
    """The corpus, the weights and the journal are not touched; the report comes out the same, byte for byte."""
    folder = made.report.parent
    made_once = [made.corpus_folder / "manifest.json", made.run.model / "model.safetensors", made.run.journal]
    times = [file.stat().st_mtime_ns for file in made_once]
    reports = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert run_demo(config, output=folder).run.was_finished
    assert [file.stat().st_mtime_ns for file in made_once] == times
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == reports


def test_other_settings_in_the_same_folder_are_refused(made, config):
    with pytest.raises(EnergyLMError, match="choose another output folder"):
        run_demo(config.model_copy(update={"steps": 31}), output=made.report.parent)


def test_one_step_is_enough(config, tmp_path):
    shortest = train_config(config.model_copy(update={"steps": 1}), corpus_folder=tmp_path)
    assert shortest.training.validation.every_steps == 1


def test_the_command_checks_its_settings_and_writes_nothing_in_a_dry_run(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from energylm.cli.main import app

    monkeypatch.chdir(tmp_path)
    dry = CliRunner().invoke(app, ["demo", "--dry-run", "--steps", "7"])
    assert dry.exit_code == 0
    assert "for 7 steps" in dry.output
    wrong = CliRunner().invoke(app, ["demo", "--dry-run", "--set", "stpes=7"])
    assert isinstance(wrong.exception, ConfigError)
    assert "did you mean 'steps'?" in str(wrong.exception)
    assert list(tmp_path.iterdir()) == []
