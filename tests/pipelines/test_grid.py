"""The grid: taken apart into steps by hand, made once, resumed, its settings derived; what cannot be is refused."""

import random

import pytest
import yaml

from energylm.config.grid import GridConfig
from energylm.errors import ConfigError, DataError
from energylm.files import read_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.pipelines.grid import plan_grid, run_grid
from energylm.pipelines.grid_steps import JudgedSet, TrainingSet, expand_grid, judged_sets, setting_of, training_sets

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
        "negatives": {"length": 16, "context_lengths": [8, 12], "k": 2},
        "contexts": {"train": 40, "valid": 20, "test": 24},
        "training": [{"generators": ["small"], "corpora": ["one"]}],
        "resamples": 20,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtefactStore(tmp_path_factory.mktemp("store"))


def grid(values, **changes):
    return GridConfig.checked(values | changes)


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
    assert made["neg_small_one_valid"].config["lm"] == "@lm_small_one_train"
    test = made["neg_small_one_test"].config
    assert (test["lm"], test["split"], test["k"]) == ("@lm_small_one_test", "test", 1)
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
    config = grid(values, generators=values["generators"] | {"given": {"lm": "smollm2-135m"}})
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
        "given": {"lm": "smollm2-135m", "negatives": {"length": 12, "context_lengths": [6]}, "pretrained_on": ["two"]},
    }
    made = expand_grid("grid", grid(values, generators=generators))
    assert made["lm_small_one_train_backwards"].config["direction"] == "right-to-left"
    assert made["neg_small_one_train_backwards"].config["side"] == "prefix"
    assert len(made["unit_on_small_one"].config["negatives"]) == 2
    assert (
        made["neg_given_one_test"].config["length"] == 12 and made["neg_given_one_test"].config["lm"] == "smollm2-135m"
    )
    assert made["neg_given_one_test"].config["corpus"] == "@one_for_given"
    assert made["one_for_given"].config["tokenizer"] == "smollm2-135m"
    left_out = [cell for cell in made["grid"].config["cells"] if "note" in cell]
    assert {(cell["energy"], cell["test"]) for cell in left_out} == {("unit", "given_two"), ("likelihood", "given_two")}
    assert "given has seen two" in left_out[0]["note"] and "unit_on_small_one_at_given_two" not in made


def test_made_once_resumed_and_reported(values, store, tmp_path, monkeypatch, capsys):
    config = grid(values, test={"settings": ["in-domain", "cross-architecture"]})
    plan = plan_grid(config, store=store)
    assert "4 cells" in plan.describe() and not any(step.finished for step in plan.steps)
    from energylm.pipelines import discriminate as module

    whole = module.discriminate
    calls = []

    def dies_at_the_third(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(module, "discriminate", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_grid(config, output=tmp_path / "out", store=store)
    run = run_grid(config, output=tmp_path / "out", store=store)
    assert len(calls) == 5  # 4 cells; the one that was interrupted is made again, the two before it are not
    assert capsys.readouterr().err.count("(lm): reused") == 3
    records = run.found["records"]
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
    assert all(step.finished for step in plan_grid(config, store=store).steps)
    assert "0 of" in plan_grid(config, store=store).describe()


def test_another_energy_reuses_all_generators(values, store, tmp_path):
    run_grid(grid(values, test={"settings": ["in-domain"]}), output=tmp_path / "out", store=store)
    energies = values["energies"] | {"linear": {"init": "linear", "settings": {"training": TRAINING}}}
    plan = plan_grid(grid(values, energies=energies, test={"settings": ["in-domain"]}), store=store)
    assert {step.name for step in plan.steps if not step.finished} == {
        "linear_on_small_one", "linear_on_small_one_at_small_one", "grid",
    }  # fmt: skip


def test_a_model_of_the_user_is_keyed_by_its_weights(values, model_folder, corpus_folder, tmp_path, monkeypatch):
    import shutil

    def keys(place):
        generators = {"mine": {"lm": str(place / "model")}}
        config = grid(
            values,
            corpora={"one": str(place / "corpus")},
            generators=generators,
            training=[{}],
            energies={"unit": UNIT},
        )
        return {step.name: step.key for step in plan_grid(config, store=ArtefactStore(tmp_path / "store")).steps}

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
        ({"generators": {"x": {}}}, "either `train` (settings) or `lm`"),
        ({"generators": {"x": {"lm": "a", "trained_on": "one"}}}, "leave out trained_on"),
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
def test_what_cannot_be_made_is_refused_before_anything_is_made(values, tmp_path, change, said):
    with pytest.raises(ConfigError) as refused:
        run_grid(grid(values, **change), output=tmp_path / "out", store=ArtefactStore(tmp_path / "store"))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "store").exists() and not (tmp_path / "out").exists()


def test_a_test_set_that_was_learnt_from_is_refused(values, texts_folder, tmp_path):
    """The same texts under two names and two split seeds: what one calls test, the other learnt from."""
    values = values | {"corpus": {"vocabulary_size": 300, "valid_fraction": 0.2, "test_fraction": 0.2}}
    corpora = {name: tmp_path / name for name in ("one", "two")}
    from energylm.config.corpus import CorpusConfig
    from energylm.pipelines.build_corpus import build_corpus

    for seed, (name, folder) in enumerate(corpora.items()):
        tokenizer = None if name == "one" else str(corpora["one"])
        settings = values["corpus"] | {"sources": [str(texts_folder)], "split_seed": seed, "tokenizer": tokenizer}
        build_corpus(CorpusConfig.checked(settings), output=folder)
    config = grid(
        values,
        corpora={name: str(folder) for name, folder in corpora.items()},
        energies={"unit": UNIT},
        contexts={"train": None, "valid": 20, "test": None},
        test={"generators": ["small"], "settings": ["cross-corpus"]},
    )
    with pytest.raises(DataError, match="stand in the texts that the energy learnt from") as refused:
        run_grid(config, output=tmp_path / "out", store=ArtefactStore(tmp_path / "store"))
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
    assert GridConfig.checked(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config
