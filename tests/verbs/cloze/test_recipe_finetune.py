"""Tables 1 and 4 in small: every encoder on every task, keyed by the content of the files, averaged over tasks."""

import shutil

import pytest
import yaml

from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs.cloze.finetune import Finetune
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import plan_recipe, reproduce

TASKS, SIBLINGS = ("cola", "sst2", "mrpc", "rte"), ("mlm", "electra", "electra_tt", "electric")
XML = '<pair id="{0}" entailment="{1}"><t>The clerk counts {0} boats.</t><h>The clerk counts.</h></pair>'


@pytest.fixture
def glue(tmp_path, monkeypatch):
    """Made-up files under the names of the real ones."""
    folder = tmp_path / "data" / "glue"
    folder.mkdir(parents=True)
    labels = [number % 2 for number in range(12)]
    for name in ("cola_in_domain_train", "cola_in_domain_dev", "cola_out_of_domain_dev"):
        rows = [f"x\t{label}\t\tThe clerk counts {number} boats.\n" for number, label in enumerate(labels)]
        (folder / f"{name}.tsv").write_text("".join(rows))
    for name in ("sst2_train", "sst2_dev"):
        (folder / f"{name}.tsv").write_text(
            "".join(f"the clerk counts {n} boats\t{one}\n" for n, one in enumerate(labels))
        )
    for name in ("mrpc_train", "mrpc_test"):
        rows = [f"{label}\t1\t2\tA sailor mends {n} lamps.\tA sailor paints.\n" for n, label in enumerate(labels)]
        (folder / f"{name}.txt").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(rows))
    for name in (f"rte{edition}_{part}" for edition in (1, 2, 3) for part in ("dev", "test")):
        pairs = "".join(XML.format(number, ("NO", "YES")[label]) for number, label in enumerate(labels))
        (folder / f"{name}.xml").write_text(f"<entailment-corpus>{pairs}</entailment-corpus>")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "data"))
    return folder


@pytest.fixture
def recipe_file(glue, bert_folder, tmp_path):
    """A recipe of the package with one tiny encoder in place of all, two steps and two seeds."""

    def written(name):
        values = load_recipe(f"clark2020/{name}").model_dump(mode="json", exclude_unset=True)
        del values["uses"]
        mini = values["scales"]["mini"]
        mini["corpora"], kept = {}, {}
        for step, settings in mini["steps"].items():
            if step.startswith("average"):
                kept[step] = settings
            elif step.startswith(TASKS):
                assert (settings["style"] == "spoken") == (not step.endswith("minilm")) if "style" in settings else True
                training = {"steps": 2, "global_batch": 4, "threads": 1}
                kept[step] = settings | {"init": str(bert_folder), "seeds": 2, "max_tokens": 24, "training": training}
        mini["steps"] = kept
        del values["scales"]["desk"], values["scales"]["paper"]
        values["steps"] = {step: values["steps"][step] for step in kept} | {
            step: one
            for step, one in values["steps"].items()
            if step.startswith(("mnli_", "squad2_", "qnli_", "sts_", "qqp_", "squad1_"))
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        return str(tmp_path / f"{name}.yaml")

    return written


def assert_the_gate_is_shut(claims):
    """After two updates the control has learnt nothing, so that no finding is judged; all else is."""
    control, *others = claims
    assert control.verdict == "does not hold" and control.predicate == "cola_minilm.medians.mcc.value > 20"
    for claim in others:
        is_finding = claim.kind in ("finding", "duplicate")
        assert (claim.verdict == "cannot be told") == is_finding, claim.says
        assert ("the control" in claim.numbers) == is_finding


def test_both_tables_share_their_steps(recipe_file, tmp_path):
    store = ArtefactStore(tmp_path / "store")
    done = reproduce(recipe_file("table4"), scale="mini", output=tmp_path / "out4", store=store)
    found = done.steps["cola_electric"].result
    assert (
        found["metric"] == "mcc"
        and (found["sizes"]["training"], found["sizes"]["evaluation"]) == (12, 24)
        and "–" in found["medians"]["mcc"]["spread"]
    )
    assert done.steps["rte_mlm"].result["sizes"]["training"] == 60
    # One encoder stands for all siblings here: what one made, the others find.
    assert len({done.steps[f"cola_{name}"].key for name in SIBLINGS}) == 1
    average = done.steps["average"].result["models"]["electra"]
    results = [done.steps[f"{task}_electra"].result for task in TASKS]
    scores = [result["medians"][result["metric"]]["value"] for result in results]
    assert average["mean"] == pytest.approx(sum(scores) / 4) and average["tasks"] == 4
    assert average["lowest"] <= average["highest"]
    assert_the_gate_is_shut(done.claims)
    text = (tmp_path / "out4" / "results.md").read_text()
    assert "The other tasks" not in text and "MiniLM-L6" in text
    again = reproduce(recipe_file("table1"), scale="mini", output=tmp_path / "out1", store=store)
    made = [name for name, one in again.steps.items() if not one.reused]
    assert made == ["average_minilm"]
    assert_the_gate_is_shut(again.claims)


def test_keys_follow_the_content_of_the_files(recipe_file, glue, tmp_path, monkeypatch):
    file, store = recipe_file("table4"), ArtefactStore(tmp_path / "store")

    def keys():
        return {step.name: step.key for step in plan_recipe(file, scale="mini", store=store).steps}

    before = keys()
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "elsewhere"))
    assert keys() == before
    path = tmp_path / "elsewhere" / "glue" / "rte2_test.xml"
    path.write_text(path.read_text().replace("The clerk", "A clerk"))
    assert {name for name, key in keys().items() if key != before[name]} == {
        "average",
        *(f"rte_{name}" for name in (*SIBLINGS, "minilm")),
    }


def test_the_recipes_start_from_the_siblings_and_know_the_whole_benchmark():
    recipe = load_recipe("clark2020/table1")
    mini, paper = recipe.steps_at("mini"), recipe.steps_at("paper")
    for task in TASKS:
        settings = [mini[f"{task}_{name}"].config for name in SIBLINGS]
        assert [one["init"] for one in settings] == [f"@{name}" for name in SIBLINGS]
        assert all(one | {"init": ""} == settings[0] | {"init": ""} for one in settings)  # equal but for the encoder
        assert mini[f"{task}_minilm"].config["init"] == "minilm-l6"
    made = [name for name, step in paper.items() if step.make == "finetune"]
    control = 1
    assert len(made) == 10 * len(SIBLINGS) + control and all(paper[name].config["seeds"] == 10 for name in made)
    desk = recipe.steps_at("desk")
    for name in (f"{task}_{model}" for task in TASKS for model in (*SIBLINGS, "minilm")):
        verb = Finetune.checked(desk[name].config, origin=name)
        assert (verb.seeds, verb.train_examples, verb.evaluation_examples) == (10, None, None)
        assert verb.chosen_epochs == (10 if name.startswith("rte") else 3)
    for name, step in {**mini, **paper}.items():
        if step.make == "finetune":
            Finetune.checked(step.config, origin=name)
