"""Table 2 of deng2020 in small: from models to a judged study, with raters that are simulated and said to be."""

import json

import pytest
import yaml

from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import reproduce


@pytest.fixture
def recipe(model_folder, energy_folder, corpus_folder, tmp_path):
    """The recipe with ready models in place of those it trains, and fewer of everything."""
    values = load_recipe("deng2020/table2").model_dump(mode="json", exclude_unset=True)
    mini = values["scales"]["mini"]
    study, panel = mini["steps"]["study"], mini["steps"]["panel"]
    folders = {"@base": str(model_folder), "@balm": str(model_folder), "@unit": str(energy_folder)}
    for model in study["models"]:
        model["language_model"] = folders[model["language_model"]]
        if "energy" in model:
            model |= {"energy": str(energy_folder), "candidates": 4}
    study |= {"length": 20, "prefix_tokens": 12, "split": "train", "source": str(corpus_folder), "pairs": 8}
    study["design"] = {"max_pairs_per_rater": 24, "qualification": {"items": 6}}
    panel |= {"good": 6, "random": 1, "lazy": 1}
    values["steps"] = {name: values["steps"][name] for name in ("study", "panel")}
    values["scales"] = {"mini": {"steps": {"study": study, "panel": panel}}}
    values.pop("uses", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return str(tmp_path / "recipe.yaml")


def test_from_models_to_table_2(recipe, tmp_path):
    store = ArtefactStore(tmp_path / "store")
    done = reproduce(recipe, scale="mini", output=tmp_path / "out", store=store)
    found = done.steps["panel"].result
    assert set(found["outcome"]["comparisons"]) == {"base_unit", "base_bit", "base_balm", "balm_unit", "balm_bit"}
    assert found["outcome"]["votes"]["given"] == 5 * 8 * 3 and set(found["exclusions"]) == {"good", "random", "lazy"}
    assert all(claim.verdict in ("holds", "does not hold") for claim in done.claims)
    page = done.report.read_text()
    assert "THE RATERS ARE SIMULATED" in page and "Published, from people" in page
    rows = json.loads(done.results.read_text())["sections"]["preferences-of-simulated-raters"]["rows"]
    assert {row["model 2 (compared)"] for row in rows} == {"unit", "bit", "balm"}
    again = reproduce(recipe, scale="mini", output=tmp_path / "again", store=store)
    assert all(artefact.reused for artefact in again.steps.values())
