"""The recipes of goyal2021 on chains in small: planned at both scales, sharing their runs, made, and judged."""

import shutil

import pytest
import yaml

from energylm.errors import DataError
from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs import MCMC
from energylm.verbs.recipes.claims import judge
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import _section, plan_recipe, reproduce
from energylm.verbs.recipes.steps import make_step

NAMES = ("table6_2", "table6_3", "table6_4", "table6_5", "table6_6", "fig6_2", "fig6_3", "fig6_4")
TRAINING = {"steps": 2, "global_batch": 8, "threads": 1, "validation": {"every_steps": 2}}
CMLM = {
    "vocabulary_size": 400,
    "longest": 28,
    "network": {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "training": TRAINING,
}


@pytest.fixture
def data(parallel_folder, tmp_path, monkeypatch):
    """Made-up pairs under the names of the real files, of both scales."""
    for folder, names in (
        ("multi30k", {"train": "train", "val": "val", "test": "test_2016_flickr"}),
        ("wmt14", {"train": "train", "val": "val", "test": "test"}),
    ):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for given, name in names.items():
            for end in ("de", "en"):
                shutil.copy(parallel_folder / f"{given}.{end}", tmp_path / "data" / folder / f"{name}.{end}")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_all_are_planned_and_share_the_translator_and_the_runs(data, scale, tmp_path):
    plans = {
        name: plan_recipe(f"goyal2021/{name}", scale=scale, store=ArtefactStore(tmp_path / "store")) for name in NAMES
    }
    keys = {name: {step.name: step.key for step in plan.steps} for name, plan in plans.items()}
    assert len({of["cmlm"] for of in keys.values()}) == 1
    assert keys["table6_2"]["norm_10"] == keys["table6_3"]["norm_10"] == keys["fig6_2"]["norm_10"]
    assert keys["table6_4"]["raw_block"] == keys["fig6_3"]["raw_block"]
    assert keys["table6_5"]["raw_slow"] == keys["fig6_4"]["raw_slow"]
    for of in keys.values():  # no two runs of a recipe are the same by mistake
        assert len(set(of.values())) == len(of)
    assert len(keys["table6_2"]) == len(keys["table6_3"]) == 11 and len(keys["table6_6"]) == 7


def test_other_data_make_other_runs_and_lost_data_are_named(data, tmp_path):
    store = ArtefactStore(tmp_path / "store")
    before = {step.name: step.key for step in plan_recipe("goyal2021/fig6_3", scale="mini", store=store).steps}
    file = data / "multi30k" / "test_2016_flickr.en"
    file.write_text(file.read_text(encoding="utf-8").upper(), encoding="utf-8")
    after = {step.name: step.key for step in plan_recipe("goyal2021/fig6_3", scale="mini", store=store).steps}
    assert before["cmlm"] == after["cmlm"] and before["raw_block"] != after["raw_block"]
    file.unlink()
    with pytest.raises(DataError, match=r"test_2016_flickr\.en does not exist"):
        plan_recipe("goyal2021/fig6_3", scale="mini", store=store)


def small(name):
    """The recipe with a tiny model and the shortest chains, and everything else as it is."""
    recipe = load_recipe(f"goyal2021/{name}").model_dump(mode="json", exclude_unset=True) | {"uses": None}
    for step, settings in recipe["scales"]["mini"]["steps"].items():
        make = recipe["steps"][step]["make"]
        if make == "pretrain cmlm":
            settings.update(CMLM)
        elif make == "pretrain mlm":
            settings.update(network={"width": 16, "layers": 1}, window=12, training=TRAINING)
        elif make == "corpus build":
            settings["vocabulary_size"] = 300
        elif make == "mcmc":
            settings |= {"chains": 1, "epochs": 3, "burn_in": 2}
            settings |= {"limit": 2, "longest_source": 28} if "source_file" in settings else {"length": [3]}
    return recipe


def test_a_recipe_is_made_and_its_claims_are_judged(data, tmp_path):
    (tmp_path / "table6_6.yaml").write_text(yaml.safe_dump(small("table6_6")))
    done = reproduce(
        str(tmp_path / "table6_6.yaml"), scale="mini", output=tmp_path / "out", store=ArtefactStore(tmp_path / "store")
    )
    assert all(claim.verdict in ("holds", "does not hold") for claim in done.claims)
    assert "Mask-Predict, five lengths" in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")


def test_chains_without_a_source_are_steps_too(masked_folder, tmp_path):
    common = {"model": str(masked_folder), "length": [3], "local_by_epoch": True}
    runs = {
        "chains": {"energy": "raw", "chains": 2, "epochs": 3, "burn_in": 1},
        "search": {"sampler": "mask-predict", "iterations": 2},
    }
    made = {name: make_step(MCMC.checked(common | run), tmp_path / name) for name, run in runs.items()}
    assert len(made["chains"]["by_epoch"]["local_energy"]) == 3 and 0 <= made["chains"]["diagnosis"]["novel"] <= 1
    assert made["chains"]["bleu"] is None and made["search"]["energy"] == made["search"]["best_energy"] > 0


CURVES = {
    "epoch": [0, 1],
    "energy": [3.0, 2.0],
    "local_energy": [3.0, 2.0],
    "acceptance": [0.9, 0.8],
    "novel": [0.2, 0.1],
    "bleu": [9.0, 10.0],
}
NUMBERS = ("energy", "best_energy", "last_energy", "bleu", "best_bleu", "last_bleu")


@pytest.mark.parametrize("name", NAMES)
def test_reports_and_claims_find_their_numbers(name):
    """Every path of report and claims is one that the steps give; without results nothing is claimed."""
    recipe = load_recipe(f"goyal2021/{name}")
    diagnosis = dict.fromkeys(("acceptance", "novel", "r_hat"), 0.5)
    run = dict.fromkeys(NUMBERS, 0.5) | {"by_epoch": CURVES, "diagnosis": diagnosis, "convention": "made up"}
    results = dict.fromkeys(recipe.steps, run)
    validation = dict.fromkeys(("loss", "length_accuracy", "bleu"), 1.0)
    translator = {"parameters": 1.0, "epochs": 1.0, "steps": 1, "validation": validation}
    results |= dict.fromkeys({"cmlm", "cmlm_weak", "cmlm_half"} & set(recipe.steps), translator)
    assert all(_section(section, results) for section in recipe.report)
    assert {judge(claim.says, claim.holds_if, [results]).verdict for claim in recipe.claims} <= {
        "holds",
        "does not hold",
    }
    lost = {step: {} for step in results}
    assert {judge(claim.says, claim.holds_if, [lost]).verdict for claim in recipe.claims} == {"cannot be told"}
