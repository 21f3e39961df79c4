"""A toy recipe from corpus to report: planned, made, reused, judged; what is wrong with a recipe is one line."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from pydantic import Field

from energylm.errors import ConfigError, DataError, ModelError
from energylm.files import read_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs import table
from energylm.verbs.recipes.recipe import StepConfig, load_recipe, recipe_names
from energylm.verbs.recipes.reproducing import plan_recipe, reproduce
from energylm.verbs.recipes.steps import make_step, reseeded, step_verb
from energylm.verbs.verb import Verb

TRAINING = {"steps": 4, "global_batch": 2, "validation": {"every_steps": 4}, "threads": 1}


@pytest.fixture(scope="module")
def recipe():
    return {
        "title": "Two widths",
        "where": "nowhere",
        "about": "A narrow and a wide language model.",
        "steps": {
            "corpus": {"make": "corpus build", "config": {"vocabulary_size": 300}},
            "narrow": {"make": "lm train", "config": {"corpus": "@corpus", "window": 12, "training": TRAINING}},
            "wide": {"make": "lm train", "config": {"corpus": "@corpus", "window": 12, "training": TRAINING}},
            "unused": {"make": "lm train", "config": {"corpus": "@corpus"}},
            "measured": {
                "make": "perplexity",
                "config": {"language_model": "@narrow", "balm": "@wide", "source": "@corpus", "split": "train"},
            },
        },
        "scales": {
            "mini": {
                "minutes": 1,
                "corpora": {
                    "absent": {"sources": ["data:no-such-folder"]},
                    "texts": {"sources": ["data:texts"]},
                },
                "steps": {
                    "corpus": {},
                    "narrow": {"network": {"width": 16, "layers": 1}},
                    "wide": {"network": {"width": 32, "layers": 1}},
                    "unused": {},
                    "measured": {"length": 12, "prefix_tokens": 4, "contexts": 5},
                },
            }
        },
        "report": [
            {
                "title": "Perplexity",
                "columns": ["model", "parameters", "here", "published"],
                "rows": [
                    ["narrow", "=narrow.parameters", "=measured.base.value", 18.4],
                    ["wide", "=wide.parameters", "=measured.baselines.balm.value", None],
                ],
                "convention": "=measured.convention",
            },
            {
                "title": "Tokens",
                "series": [{"name": "made up", "x": "=listed.x", "y": "=listed.y"}],
                "x_label": "x",
                "y_label": "y",
            },
        ],
        "claims": [
            {"says": "wide has more parameters", "holds_if": "wide.parameters > narrow.parameters", "published": "yes"},
            {"says": "narrow has more parameters", "holds_if": "narrow.parameters > wide.parameters"},
        ],
    }


@dataclass(frozen=True)
class Points(Record):
    x: list[int]
    y: list[float]
    was_finished: bool = False


class Lists(Verb):
    """A verb that needs no model."""

    value: int = Field(0, description="The last number.")

    def run(self, job: Job = DEFAULT_JOB) -> Points:
        was_finished = job.folder.exists()
        job.folder.mkdir(parents=True, exist_ok=True)
        return Points([1, 2], [3.0, self.value], was_finished)


@pytest.fixture
def lists(monkeypatch):
    """A verb of the table, as `from energylm.verbs import …` and recipes find it."""
    module = ModuleType("energylm.verbs.toy")
    module.Lists = Lists
    monkeypatch.setitem(sys.modules, "energylm.verbs.toy", module)
    monkeypatch.setitem(table.STEPS_ONLY, "lists", "toy:Lists")


@pytest.fixture
def file(tmp_path, recipe, lists, texts_folder, monkeypatch):
    monkeypatch.setenv("ENERGYLM_DATA", str(texts_folder.parent))
    values = recipe | {"steps": recipe["steps"] | {"listed": {"make": "lists"}}}
    values["scales"] = {
        "mini": recipe["scales"]["mini"] | {"steps": recipe["scales"]["mini"]["steps"] | {"listed": {"value": 4}}}
    }
    return _write(tmp_path, values)


def _write(folder, values):
    (folder / "toy.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "toy.yaml")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtefactStore(tmp_path_factory.mktemp("store"))


def test_what_is_kept_of_a_step_does_not_say_which_process_finished_it(lists, tmp_path):
    """A step killed between its last byte and its record is found finished by the next process. `--json` tells."""
    first, second = (make_step(step_verb("lists", {"value": 4}), tmp_path / "made") for _ in range(2))
    assert first == second == {"x": [1, 2], "y": [3.0, 4]}
    assert Lists(value=4).run(Job(output=tmp_path / "made")).to_json()["was_finished"]  # teeth: it does differ


def test_a_recipe_is_made_reported_and_reused(file, store, tmp_path, capsys):
    plan = plan_recipe(file, scale="mini", store=store)
    assert plan.corpus == "texts"  # the first whose data are here
    assert [step.name for step in plan.steps] == ["corpus", "listed", "narrow", "wide", "measured"]  # without `unused`
    assert "5 of 5 steps to make; all of them take about 1 minutes" in plan.describe()
    assert not any(store.root.rglob("artefact.json"))
    done = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    assert [claim.verdict for claim in done.claims] == ["holds", "does not hold"]
    kept = read_json(done.results)
    rows = kept["sections"]["perplexity"]["rows"]
    assert rows[0]["parameters"] == done.steps["narrow"].result["parameters"] and rows[0]["published"] == 18.4
    assert (
        rows[1]["here"] == done.steps["measured"].result["baselines"]["balm"]["value"] and rows[1]["published"] is None
    )
    assert "tokens" in kept["sections"]["perplexity"]["convention"]
    assert [row["here"] for row in kept["sections"]["claims"]["rows"]] == ["holds", "does not hold"]
    assert kept["sections"]["tokens"]["plot"]["series"][0]["y"] == [3.0, 4]
    assert {"report.html", "results.md", "tokens.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()
    again = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    assert all(artefact.reused for artefact in again.steps.values()) and again.claims == done.claims
    assert capsys.readouterr().err.count("reused") == 5


def test_several_seeds_are_several_runs_of_all_that_has_a_seed(file, store, tmp_path):
    """The corpus and the lists have none and are made once. Teeth: runs that shared their seeds would not differ."""
    done = reproduce(file, scale="mini", seeds=3, output=tmp_path / "out", store=store)
    again = [f"{name}~{run}" for run in (2, 3) for name in ("narrow", "wide", "measured")]
    assert list(done.steps) == ["corpus", "listed", "narrow", "wide", "measured", *again]
    found = [done.steps[name].result["base"]["value"] for name in ("measured", "measured~2", "measured~3")]
    assert len(set(found)) == 3
    kept = read_json(done.results)
    assert kept["sections"]["perplexity"]["rows"][0]["here"] == pytest.approx(sum(found) / 3)
    assert ", 3 seeds: " in kept["title"]
    assert "means of 3 runs" in kept["sections"]["what-this-is"]["body"]
    parameters = done.claims[0].difference  # does not vary, so it needs no interval
    assert parameters.lower == parameters.value == parameters.upper and done.claims[0].verdict == "holds"


def test_a_seed_moves_wherever_it_is_written():
    """At the top, inside `training`, and by its shortcut, which must not win over the key that it stands for."""

    def seeds(config):
        verb = step_verb("lm train", reseeded("lm", StepConfig(make="lm train", config=config), 2).config)
        return verb.training.seed

    assert seeds({"corpus": "c"}) == 2000 and seeds({"corpus": "c", "training": {"seed": 1}}) == 2001
    assert seeds({"corpus": "c", "seed": 5}) == 2005
    unchanged = StepConfig(make="lm train", config={"corpus": "c"})
    assert reseeded("lm", unchanged, 0) is unchanged


def test_a_scale_may_be_like_another(file, tmp_path):
    values = yaml.safe_load(Path(file).read_text())
    values["scales"]["desk"] = {"like": "mini", "minutes": 60, "steps": {"narrow": {"network": {"width": 20}}}}
    recipe = load_recipe(_write(tmp_path, values))
    assert recipe.steps_at("desk")["narrow"].config["network"] == {"width": 20, "layers": 1}
    assert recipe.steps_at("mini")["narrow"].config["network"]["width"] == 16
    assert recipe.scales["desk"].minutes == 60 and "texts" in recipe.scales["desk"].corpora
    values["scales"]["desk"]["like"] = "desk"
    with pytest.raises(ConfigError, match="which is no other scale"):
        load_recipe(_write(tmp_path, values))


def test_what_changes_is_made_anew_and_the_rest_is_shared(file, store, tmp_path):
    reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    values = yaml.safe_load(Path(file).read_text())
    values["scales"]["mini"]["steps"]["narrow"]["network"]["width"] = 20
    plan = plan_recipe(_write(tmp_path, values), scale="mini", store=store)
    assert {step.name: step.finished for step in plan.steps} == {
        "corpus": True, "listed": True, "narrow": False, "wide": True, "measured": False,
    }  # fmt: skip


def test_the_key_follows_the_content_of_the_sources_not_their_place(file, store, tmp_path, texts_folder, monkeypatch):
    import shutil

    def keys():
        return {step.name: step.key for step in plan_recipe(file, scale="mini", store=store).steps}

    here = keys()
    shutil.copytree(texts_folder, tmp_path / "elsewhere" / "texts")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "elsewhere"))
    assert keys() == here
    (tmp_path / "elsewhere" / "texts" / "00.txt").write_text("Something else.")
    there = keys()
    assert all(there[name] != here[name] for name in ("corpus", "narrow", "wide", "measured"))
    assert there["listed"] == here["listed"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda r: r["claims"][0].update(holds_if="wdie.parameters > 1"), ConfigError, "'wdie', which is no step"),
        (lambda r: r["claims"][0].update(holds_if="wide.parameters"), ConfigError, "compares nothing"),
        (lambda r: r["steps"]["narrow"].update(make="llm"), ConfigError, "makes 'llm', which is unknown"),
        (lambda r: r["steps"]["narrow"]["config"].update(windwo=3), ConfigError, "did you mean 'window'"),
        (
            lambda r: (
                r["steps"]["narrow"]["config"].update(pretrained="@wide")
                or r["steps"]["wide"]["config"].update(pretrained="@narrow")
            ),
            ConfigError,
            "in a circle",
        ),
        (lambda r: r["scales"]["mini"]["corpora"].pop("texts"), DataError, "none of the corpora absent is here"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_is_made(file, tmp_path, change, error, said):
    values = yaml.safe_load(Path(file).read_text())
    change(values)
    with pytest.raises(error) as refused:
        reproduce(_write(tmp_path, values), scale="mini", store=ArtefactStore(tmp_path / "store"))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "store").exists()


def test_scale_and_corpus_that_are_not_there(file, store):
    with pytest.raises(ConfigError, match="has no scale 'paper'"):
        plan_recipe(file, scale="paper", store=store)
    with pytest.raises(ConfigError, match="unknown corpus 'nwes'; this recipe has: absent, texts"):
        plan_recipe(file, scale="mini", corpus="nwes", store=store)


def test_a_report_that_asks_for_a_number_that_is_not_there(file, store, tmp_path):
    values = yaml.safe_load(Path(file).read_text())
    values["report"][0]["rows"][0][2] = "=measured.bsae"
    with pytest.raises(ConfigError, match="measured has no 'bsae'"):
        reproduce(_write(tmp_path, values), scale="mini", output=tmp_path / "out", store=store)


@pytest.fixture
def several(recipe, tmp_path, texts_folder, monkeypatch):
    """A recipe with two sets of corpora, of which only the second is here, and a grid over it."""
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(40):
            words = " ".join(f"{name}{(number * 7 + place * place) % 23}" for place in range(50))
            (tmp_path / "data" / name / f"{number}.txt").write_text(words)
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "data"))
    grid = {
        "generators": {"small": {"train": {"window": 12, "network": {"width": 16, "layers": 1}, "training": TRAINING}}},
        "energies": {"linear": {"init": "linear", "settings": {"training": TRAINING}}},
        "negatives": {"length": 12, "prefix_tokens": [8], "k": 1},
        "contexts": {"train": 30, "valid": 20, "test": 20},
        "training": [{"corpora": ["a"]}, {"corpora": ["c"]}],
        "resamples": 10,
    }
    values = recipe | {
        "steps": {"corpus": {"make": "corpus build"}, "grid": {"make": "grid", "config": grid}},
        "scales": {
            "mini": {
                "corpora": {
                    "absent": {"c": {"sources": ["data:no-such"]}},
                    "here": {"a": {"sources": ["data:a"]}, "b": {"sources": ["data:b"]}},
                },
                "steps": {
                    "corpus": {"vocabulary_size": 300, "valid_fraction": 0.25, "test_fraction": 0.25},
                    "grid": {},
                },
            }
        },
        "report": [
            {"title": "Grid", "grid": "=grid"},
            {
                "title": "Cells",
                "columns": ["on", "a", "b"],
                "rows": [
                    [
                        "a",
                        "=linear_on_small_a_at_small_a.measured.balanced_accuracy.value",
                        "=linear_on_small_c_at_small_c.measured.balanced_accuracy.value",
                    ],
                    ["c", "=linear_on_small_c_at_small_c.measured.balanced_accuracy.value", None],
                ],
            },
        ],
        "claims": [
            {"says": "chance at least", "holds_if": "grid.settings.in_domain.accuracy >= 0"},
            {"says": "of another set", "holds_if": "grid.settings.unseen.accuracy >= 0"},
        ],
    }
    return values


def test_several_corpora_with_one_tokenizer(several, tmp_path):
    """A set is chosen as a whole; its corpora share the union's tokenizer; what is said of other sets falls away."""
    from energylm.data.corpus import Corpus

    file, store = _write(tmp_path, several), ArtefactStore(tmp_path / "store")
    plan = plan_recipe(file, scale="mini", store=store)
    assert plan.corpus == "here" and [step.name for step in plan.steps[:3]] == ["corpus", "a", "b"]
    assert not any("_c_" in step.name for step in plan.steps)
    done = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    opened = {name: Corpus.open(done.steps[name].folder).manifest for name in ("corpus", "a", "b")}
    assert len({one.tokenizer.sha256 for one in opened.values()}) == 1
    assert opened["corpus"].splits["train"].documents == sum(opened[n].splits["train"].documents for n in ("a", "b"))
    kept = read_json(done.results)["sections"]
    (row,) = kept["cells"]["rows"]  # not that of `c`; a cell of `c` in another row is empty
    assert row["on"] == "a" and row["a"] is not None and row["b"] is None
    assert kept["grid-cells"]["rows"][1]["setting"] == "cross-corpus"
    assert [claim.verdict for claim in done.claims] == ["holds", "cannot be told"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda r: r["report"][1]["rows"][0].__setitem__(
                1, "=linear_on_small_a_at_smal_a.measured.balanced_accuracy.value"
            ),
            "did you mean",
        ),
        (lambda r: r["scales"]["mini"]["corpora"]["here"]["a"].update(test_fraction=0.1), "test_fraction of its own"),
        (lambda r: r["scales"]["mini"]["corpora"]["here"]["a"].pop("sources"), "'a' has no sources"),
        (lambda r: r["steps"]["grid"]["config"]["training"].append({"corpora": ["d"]}), "names 'd', which is unknown"),
    ],
)
def test_mistakes_with_several_corpora(several, tmp_path, change, said):
    change(several)
    with pytest.raises(ConfigError) as refused:
        plan_recipe(_write(tmp_path, several), scale="mini", store=ArtefactStore(tmp_path / "store"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


NEED_MORE = {  # models of `energylm models get`, or files beside the corpora
    "deng2020/pretrained",
    "bakhtin2019/table5",
    "bakhtin2019/table6",
    "bakhtin2019/unseen_generators",
    "clark2020/table1",
    "clark2020/table2",
    "clark2020/table4",
    "clark2020/table5",
    "clark2020/starts",
    "goyal2021/fig6_2",
}
# Recipes without a choice of corpora read files of ENERGYLM_DATA: their own tests make these up.
ON_CORPORA = [
    (name, scale)
    for name in recipe_names()
    for scale, settings in load_recipe(name).scales.items()
    if settings.corpora and name not in NEED_MORE
]


@pytest.mark.parametrize(("name", "scale"), ON_CORPORA)
def test_every_recipe_on_corpora_can_be_planned_offline(name, scale, store, request):
    """All settings pass the configs of their pipelines, all references lead to steps, all predicates can be read. At
    scale mini on the default corpus, which comes last and is always here; scale desk reads data sets."""
    if scale == "desk":
        request.getfixturevalue("data_folder")
    alternatives = list(load_recipe(name).scales[scale].corpora)
    corpus = alternatives[-1] if scale == "mini" else alternatives[0]
    plan = plan_recipe(name, scale=scale, corpus=corpus, store=store)
    needed = {step.name for step in plan.steps}
    assert needed and not any(step.finished for step in plan.steps)
    if name.startswith(("deng2020", "bakhtin2019")):
        assert plan.steps[0].name == "corpus"
        assert {"base", "bit"} <= needed if name.startswith("deng2020") else len(needed) > 3


def test_figures_share_what_table_1_makes(store):
    """Nothing is trained twice: the base, the negatives and BiT of every figure have the keys that they have there."""
    plans = {
        n: plan_recipe(f"deng2020/{n}", scale="mini", corpus="sotu", store=store)
        for n in ("table1", "fig1", "fig2", "fig3", "table3")
    }
    keys = {name: {step.name: step.key for step in plan.steps} for name, plan in plans.items()}
    for name in ("corpus", "base", "bit_start", "negatives", "held_out", "bit"):
        assert len({found[name] for found in keys.values()}) == 1
    assert keys["fig2"]["text"] == keys["fig3"]["text"]


def test_a_pretrained_model_that_is_not_here_is_named_with_the_cure(store):
    with pytest.raises(ModelError, match="energylm models get smollm2-135m"):
        plan_recipe("deng2020/pretrained", scale="mini", corpus="sotu", store=store)


@pytest.fixture
def toy(tmp_path, texts_folder):
    training = {"steps": 2, "global_batch": 2, "validation": {"every_steps": 2}, "threads": 1}
    values = {
        "title": "One model",
        "where": "nowhere",
        "about": "One model.",
        "steps": {
            "corpus": {"make": "corpus build", "config": {"vocabulary_size": 300}},
            "lm": {
                "make": "lm train",
                "config": {"corpus": "@corpus", "window": 8, "network": {"width": 16, "layers": 1}},
            },
        },
        "scales": {
            "mini": {
                "corpora": {"texts": {"sources": [str(texts_folder)]}},
                "steps": {"corpus": {}, "lm": {"training": training}},
            }
        },
        "report": [{"title": "Numbers", "columns": ["perplexity"], "rows": [["=lm.best_perplexity.value"]]}],
        "claims": [
            {"says": "it knows something", "holds_if": "lm.best_perplexity.value < 1000", "published": "17.57"},
            {"says": "it knows everything", "holds_if": "lm.best_perplexity.value < 1.5"},
        ],
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "toy.yaml"


def test_claims_and_report_on_stdout_and_results_as_json(toy, tmp_path, monkeypatch, energylm_command):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    planned = energylm_command("reproduce", toy, "--dry-run")
    assert planned.exit_code == 0 and "2 of 2 steps to make" in planned.stdout and not (tmp_path / "home").exists()
    done = energylm_command("reproduce", toy, "--output", tmp_path / "out", "--json", tmp_path / "kept.json")
    first, second, page = done.stdout.splitlines()
    assert first.startswith("holds by +") and first.endswith("(published: 17.57)")
    assert " (one run): it knows something: lm.best_perplexity.value = " in first
    assert (
        second.startswith("does not hold by -") and "(one run): it knows everything" in second and done.exit_code == 0
    )  # a result, not an error
    assert page == str(tmp_path / "out" / "report.html")
    assert read_json(tmp_path / "kept.json") == read_json(tmp_path / "out" / "results.json")
    assert "0 of 2 steps to make" in energylm_command("reproduce", toy, "--dry-run").stdout


def test_list(energylm_command):
    done = energylm_command("reproduce", "--list")
    assert done.exit_code == 0 and "deng2020/table1" in done.stdout and "table 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a recipe"),
        (("deng2020/table1", "--scale", "maxi"), "--scale: Input should be 'mini', 'desk' or 'paper'"),
        (("tabel1",), "unknown recipe"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(energylm_command, arguments, said):
    done = energylm_command("reproduce", *arguments)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and said in done.stderr
