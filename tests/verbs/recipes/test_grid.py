"""The grid: taken apart into steps by hand, made once, resumed, its settings derived; what cannot be is refused."""

import random

import pytest
import yaml

from energylm.errors import ConfigError, DataError
from energylm.files import read_json
from energylm.jobs.job import Job
from energylm.verbs.recipes.grid import Grid
from energylm.verbs.recipes.grid_steps import (
    JudgedSet,
    TrainingSet,
    expand_grid,
    judged_sets,
    setting_of,
    training_sets,
)

TRAINING = {"steps": 3, "global_batch": 2, "validation": {"every_steps": 3}, "threads": 1}
LM = {"window": 16, "network": {"width": 16, "layers": 1}, "training": TRAINING}
CONV = {
    "preset": "conv-tiny",
    "network": {"width": 16, "embedding_width": 16, "layers": 1},
    "window": 16,
    "training": TRAINING,
}
UNIT = {"init": "tiny", "settings": {"network": {"width": 16, "layers": 1}, "training": TRAINING | {"global_batch": 4}}}


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    """Texts of another made-up language."""
    chooser = random.Random(1)
    folder = tmp_path_factory.mktemp("other") / "texts"
    folder.mkdir()
    for number in range(60):
        words = [chooser.choice(("kilo", "lima", "mike", "papa", "romeo", "tango", "zulu")) for _ in range(60)]
        (folder / f"{number:02}.txt").write_text(" ".join(words) + "\n")
    return folder


@pytest.fixture
def values(texts_folder, other_folder):
    return {
        "corpora": {"one": {"sources": [str(texts_folder)]}, "two": {"sources": [str(other_folder)]}},
        "corpus": {"vocabulary_size": 300, "valid_fraction": 0.2, "test_fraction": 0.2},
        "generators": {"small": {"train": LM}, "conv": {"train": CONV}},
        "energies": {"unit": UNIT, "likelihood": {"init": "log-likelihood"}},
        "negatives": {"length": 16, "prefix_tokens": [8, 12], "k": 2},
        "contexts": {"train": 40, "valid": 20, "test": 24},
        "training": [{"generators": ["small"], "corpora": ["one"]}],
        "resamples": 20,
    }


def grid(values, **changes):
    return Grid.checked(values | changes)


def names(config):
    return set(expand_grid("grid", config))


def test_taken_apart_by_hand(values):
    """One training set, four test sets, two energies: eight cells. Test texts are by generators of their own."""
    made = expand_grid("grid", grid(values))
    assert names(grid(values)) == {
        "corpus", "one", "two",
        "lm_small_one_train", "lm_small_one_test", "lm_small_two_test", "lm_conv_one_test", "lm_conv_two_test",
        "neg_small_one_train", "neg_small_one_valid",
        "neg_small_one_test", "neg_small_two_test", "neg_conv_one_test", "neg_conv_two_test",
        "unit_on_small_one", "likelihood_on_small_one",
        *(f"unit_on_small_one_at_{g}_{c}" for g in ("small", "conv") for c in ("one", "two")),
        *(f"likelihood_on_small_one_at_{g}_{c}" for g in ("small", "conv") for c in ("one", "two")),
        "grid",
    }  # fmt: skip
    assert made["lm_small_one_train"].config["training"]["seed"] == 0
    assert made["lm_small_one_test"].config["training"]["seed"] == 1
    assert made["neg_small_one_valid"].config["language_model"] == "@lm_small_one_train"
    test = made["neg_small_one_test"].config
    assert (test["language_model"], test["split"], test["k"]) == ("@lm_small_one_test", "test", 1)
    assert test["truncation"] == {"top_k": 10} and test["documents"] == "within" and test["side"] == "suffix"
    assert made["one"].config["tokenizer"] == made["two"].config["tokenizer"] == "@corpus"
    assert made["corpus"].config["sources"] == [
        *values["corpora"]["one"]["sources"],
        *values["corpora"]["two"]["sources"],
    ]
    cell = made["unit_on_small_one_at_conv_two"].config
    assert cell["negatives"] == ["@neg_conv_two_test"] and cell["trained_on"] == ["@neg_small_one_train"]


def test_settings_are_derived_from_what_the_sides_share(values):
    """bakhtin2019 table 1, and a model from elsewhere, whose own corpus is none of ours."""
    config = grid(values, generators=values["generators"] | {"given": {"language_model": "smollm2-135m"}})
    one, both = TrainingSet(("small",), ("one",), ()), TrainingSet(("small", "conv"), ("one", "two"), ())
    settings = {(t.name, test.name): setting_of(config, t, test) for t in (one, both) for test in judged_sets(config)}
    assert settings == {
        ("small_one", "small_one"): "in-domain",
        ("small_one", "conv_one"): "cross-architecture",
        ("small_one", "small_two"): "cross-corpus",
        ("small_one", "conv_two"): "unseen",
        ("small_one", "given_one"): "unseen",
        ("small_one", "given_two"): "unseen",
        ("small_conv_one_two", "small_one"): "in-domain",
        ("small_conv_one_two", "small_two"): "in-domain",
        ("small_conv_one_two", "conv_one"): "in-domain",
        ("small_conv_one_two", "conv_two"): "in-domain",
        ("small_conv_one_two", "given_one"): "unseen",
        ("small_conv_one_two", "given_two"): "unseen",
    }
    # A generator of a fixed corpus brings that corpus along: trained on `two`, it is new to who has seen `one` alone.
    config = grid(values, generators={"small": {"train": LM}, "huge": {"train": LM, "trained_on": "two"}})
    assert setting_of(config, one, JudgedSet("huge", "one")) == "unseen"
    both_corpora = TrainingSet(("small",), ("one", "two"), ())
    assert setting_of(config, both_corpora, JudgedSet("huge", "one")) == "cross-architecture"


def test_training_sets_by_each_pairs_and_all(values):
    corpora = {name: values["corpora"]["one"] for name in ("a", "b", "c")}
    training = [{}, {"corpora": "pairs", "generators": ["small"]}, {"corpora": "all", "generators": "all"}]
    found = [one.name for one in training_sets(grid(values, corpora=corpora, training=training))]
    assert found == [
        "small_a", "conv_a", "small_b", "conv_b", "small_c", "conv_c",
        "small_a_b", "small_a_c", "small_b_c", "small_conv_a_b_c",
    ]  # fmt: skip


def test_both_directions_and_a_given_model(values):
    generators = {
        "small": {"train": LM, "directions": ["left-to-right", "right-to-left"]},
        "given": {
            "language_model": "smollm2-135m",
            "negatives": {"length": 12, "prefix_tokens": [6]},
            "pretrained_on": ["two"],
        },
    }
    made = expand_grid("grid", grid(values, generators=generators))
    assert made["lm_small_one_train_backwards"].config["direction"] == "right-to-left"
    assert made["neg_small_one_train_backwards"].config["side"] == "prefix"
    assert len(made["unit_on_small_one"].config["negatives"]) == 2
    assert (
        made["neg_given_one_test"].config["length"] == 12
        and made["neg_given_one_test"].config["language_model"] == "smollm2-135m"
    )
    assert made["neg_given_one_test"].config["corpus"] == "@one_for_given"
    assert made["one_for_given"].config["tokenizer"] == "smollm2-135m"
    left_out = [cell for cell in made["grid"].config["cells"] if "note" in cell]
    assert {(cell["energy"], cell["test"]) for cell in left_out} == {("unit", "given_two"), ("likelihood", "given_two")}
    assert "given has seen two" in left_out[0]["note"] and "unit_on_small_one_at_given_two" not in made


def test_made_once_resumed_and_reported(values, home, tmp_path, monkeypatch, capsys):
    config = grid(values, test={"settings": ["in-domain", "cross-architecture"]})
    assert "4 cells" in config.check() and not any(step.finished for step in config.plan())
    from energylm.verbs.detect import discriminating as module

    whole = module.discriminate
    calls = []

    def dies_at_the_third(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(module, "discriminate", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        config.run(Job(output=tmp_path / "out"))
    run = config.run(Job(output=tmp_path / "out"))
    assert len(calls) == 5  # 4 cells; the one that was interrupted is made again, the two before it are not
    assert capsys.readouterr().err.count("(lm train): reused") == 3
    records = run.cells["records"]
    assert [(record["energy"], record["tested on"], record["setting"]) for record in records] == [
        ("unit", "small_one", "in-domain"), ("unit", "conv_one", "cross-architecture"),
        ("likelihood", "small_one", "in-domain"), ("likelihood", "conv_one", "cross-architecture"),
    ]  # fmt: skip
    for record in records:
        assert 0 <= record["lower"] <= record["accuracy"] <= record["upper"] <= 1 and record["texts"] > 10
    kept = read_json(run.results)
    assert kept["sections"]["accuracy-settings"]["rows"][0]["cells"] == 2
    assert kept["sections"]["accuracy-unit"]["plot"]["marks"] == [["in-domain", "cross-architecture"]]
    assert {"report.html", "results.md", "accuracy-unit.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert all(step.finished for step in config.plan())
    assert "0 of" in config.check() and run.to_json() == kept


def test_another_energy_reuses_all_generators(values, home, tmp_path):
    grid(values, test={"settings": ["in-domain"]}).run(Job(output=tmp_path / "out"))
    energies = values["energies"] | {"linear": {"init": "linear", "settings": {"training": TRAINING}}}
    steps = grid(values, energies=energies, test={"settings": ["in-domain"]}).plan()
    assert {step.name for step in steps if not step.finished} == {
        "linear_on_small_one", "linear_on_small_one_at_small_one", "grid",
    }  # fmt: skip


def test_a_model_of_the_user_is_keyed_by_its_weights(values, model_folder, corpus_folder, tmp_path, monkeypatch):
    import shutil

    def keys(place):
        generators = {"mine": {"language_model": str(place / "model")}}
        config = grid(
            values,
            corpora={"one": str(place / "corpus")},
            generators=generators,
            training=[{}],
            energies={"unit": UNIT},
        )
        return {step.name: step.key for step in config.plan()}

    here = keys(model_folder.parent)
    assert "corpus" not in here and "one_for_mine" not in here  # a corpus folder is taken as it is
    for name in ("model", "corpus"):
        shutil.copytree(model_folder.parent / name, tmp_path / "moved" / name)
    assert keys(tmp_path / "moved") == here
    manifest = tmp_path / "moved" / "model" / "energylm.json"
    manifest.write_text(manifest.read_text().replace('"weights": {', '"weights": {"more": "1",', 1))
    assert keys(tmp_path / "moved") != here


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test": {"corpora": ["onne"]}}, "test.corpora names 'onne', which is unknown; did you mean 'one'?"),
        ({"training": [{"generators": ["smal"]}]}, "did you mean 'small'?"),
        ({"training": [{"energies": ["bilstm"]}]}, "training.0.energies names 'bilstm'"),
        ({"test_seed": 0}, "train_seed and test_seed are both 0"),
        ({"generators": {"x": {}}}, "either train (settings) or language_model"),
        ({"generators": {"x": {"language_model": "a", "trained_on": "one"}}}, "leave out trained_on"),
        ({"generators": {"x y": {"train": {}}}}, "'x y' is no name"),
        ({"enregies": {}}, "did you mean 'energies'?"),
        ({"corpora": {}}, "corpora"),
    ],
)
def test_mistakes_in_a_grid_are_one_line(values, change, said):
    with pytest.raises(ConfigError) as refused:
        grid(values, **change)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"corpora": {"one": {"sorces": ["x"]}}}, "corpus 'one' has no sources"),
        ({"corpora": {"corpus": {"sources": ["sotu"]}}, "training": [{}]}, "'corpus' is the name of the union"),
        ({"training": [{"corpora": "pairs"}]}, "is a union"),  # of a likelihood energy
        ({"energies": {"unit": UNIT | {"init": "@strat"}}, "starts": {"start": {}}}, "did you mean @start?"),
        ({"energies": {"unit": UNIT | {"settings": {"kindd": 1}}}}, "did you mean 'kind'?"),
        ({"test": {"settings": ["unseen"], "generators": ["small"], "corpora": ["one"]}}, "no cell is left"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_made(values, tmp_path, monkeypatch, change, said):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError) as refused:
        grid(values, **change).run(Job(output=tmp_path / "out"))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "home").exists() and not (tmp_path / "out").exists()


def test_a_test_set_that_was_learnt_from_is_refused(values, texts_folder, tmp_path):
    """The same texts under two names and two split seeds: what one calls test, the other learnt from."""
    values = values | {"corpus": {"vocabulary_size": 300, "valid_fraction": 0.2, "test_fraction": 0.2}}
    corpora = {name: tmp_path / name for name in ("one", "two")}

    from energylm.verbs import BuildCorpus

    for seed, (name, folder) in enumerate(corpora.items()):
        tokenizer = None if name == "one" else str(corpora["one"])
        settings = values["corpus"] | {"sources": [str(texts_folder)], "split_seed": seed, "tokenizer": tokenizer}
        BuildCorpus.checked(settings).run(Job(output=folder))
    config = grid(
        values,
        corpora={name: str(folder) for name, folder in corpora.items()},
        energies={"unit": UNIT},
        contexts={"train": None, "valid": 20, "test": None},
        test={"generators": ["small"], "settings": ["cross-corpus"]},
    )
    with pytest.raises(DataError, match="stand in the texts that the energy learnt from") as refused:
        config.run(Job(output=tmp_path / "out"))
    assert "\n" not in str(refused.value)


def test_a_grid_on_some_of_its_corpora(values):
    energies = {"unit": UNIT | {"pretrained_on": ["two"]}}
    config = grid(
        values,
        energies=energies,
        generators=values["generators"] | {"huge": {"train": LM, "trained_on": "two"}},
        training=[{"corpora": ["one"]}, {"corpora": ["two"]}, {"corpora": ["one"], "generators": ["huge"]}],
        test={"corpora": ["one", "two"], "generators": ["small", "huge"]},
    ).on(["one"])
    assert list(config.corpora) == ["one"] and list(config.generators) == ["small", "conv"]
    assert [one.name for one in training_sets(config)] == ["small_one", "conv_one"]
    assert config.test.generators == ("small",) and config.energies["unit"].pretrained_on == ()


def test_configs_are_yaml(values):
    config = grid(values)
    assert Grid.checked(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


@pytest.fixture
def file(tmp_path, corpus_folder, model_folder, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    training = {"steps": 2, "global_batch": 2, "validation": {"every_steps": 2}, "threads": 1}
    values = {
        "corpora": {"tales": str(corpus_folder)},
        "generators": {
            "mine": {"language_model": str(model_folder)},
            "small": {"train": {"window": 16, "network": {"width": 16, "layers": 1}, "training": training}},
        },
        "energies": {"linear": {"init": "linear", "settings": {"training": training}}},
        "negatives": {"length": 16, "prefix_tokens": [8], "k": 1},
        "contexts": {"train": 20, "valid": 12, "test": 12},
        "training": [{"generators": ["small"]}],
        "resamples": 20,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "study.yaml"


def test_plan_run_and_run_again(file, tmp_path, energylm_command):
    planned = energylm_command("grid", "--config", file, "--dry-run")
    assert planned.exit_code == 0 and not (tmp_path / "home").exists()
    assert "cell      linear trained on small_tales, tested on mine_tales: unseen" in planned.stdout
    assert planned.stdout.rstrip().endswith("10 of 10 steps to make, 2 cells")
    done = energylm_command("grid", "--config", file, "--output", tmp_path / "out", "--json", tmp_path / "kept.json")
    *cells, page = done.stdout.splitlines()
    assert [line.split(": accuracy")[0] for line in cells] == [
        "linear trained on small_tales, tested on mine_tales: unseen",
        "linear trained on small_tales, tested on small_tales: in-domain",
    ]
    assert page == str(tmp_path / "out" / "report.html")
    assert read_json(tmp_path / "kept.json")["sections"]["accuracy-cells"]["rows"][0]["texts"] == 12
    assert "0 of 10 steps to make" in energylm_command("grid", "--config", file, "--dry-run").stdout


def test_mistakes_on_the_command_line_are_one_line(file, tmp_path, energylm_command):
    for arguments, said in (
        (("--config", file), "--output FOLDER"),
        (("--config", tmp_path / "none.yaml", "--dry-run"), "does not exist"),
        (("--dry-run",), "key 'corpora' is missing"),
        (("--config", file, "--dry-run", "--set", "test.generators=[smal]"), "did you mean 'small'?"),
        (("--config", file, "--dry-run", "--set", "contexts.tset=5"), "did you mean 'contexts.test'?"),
    ):
        done = energylm_command("grid", *arguments)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1 and said in done.stderr
