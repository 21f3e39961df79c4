"""Recipes as data: the schema refuses what makes no sense, and every recipe of the package is sound at every scale."""

import pytest
import yaml

from energylm.config.base import merged
from energylm.errors import ConfigError
from energylm.verbs.recipes.recipe import (
    CORPUS,
    GRID,
    first_made,
    load_recipe,
    read_recipe,
    recipe_names,
    references,
    with_products,
)
from energylm.verbs.table import verb_class

SAME = ("clark2020/compute",)  # nothing is trained: its scales take as long as each other
RECIPE = {
    "title": "A title",
    "where": "table 1",
    "about": "About it.",
    "steps": {
        "corpus": {"make": "corpus build"},
        "base": {"make": "lm train", "config": {"corpus": "@corpus", "window": 8}},
    },
    "scales": {"mini": {"steps": {"corpus": {}, "base": {"window": 9}}}},
    "report": [{"title": "T", "columns": ["a", "b"], "rows": [["x", "=base.perplexity"]]}],
    "claims": [{"says": "s", "holds_if": "base.perplexity < 3"}],
}


def written(folder, name, values):
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return folder / f"{name}.yaml"


def test_a_scale_lies_over_what_holds_for_all(tmp_path):
    recipe = read_recipe(written(tmp_path, "one", RECIPE))
    assert recipe.steps_at("mini")["base"].config == {"corpus": "@corpus", "window": 9}
    assert recipe.steps["base"].config["window"] == 8


def test_shared_steps_come_from_the_file_that_is_named(tmp_path):
    shared = {
        "steps": RECIPE["steps"],
        "scales": {"mini": {"minutes": 3, "steps": {"corpus": {}, "base": {"window": 5}}}},
    }
    written(tmp_path, "_shared", shared)
    own = {key: value for key, value in RECIPE.items() if key != "steps"} | {"uses": "_shared"}
    recipe = read_recipe(written(tmp_path, "one", own))
    assert recipe.steps_at("mini")["base"].config["window"] == 9 and recipe.scales["mini"].minutes == 3
    del own["scales"]
    assert read_recipe(written(tmp_path, "two", own)).steps_at("mini")["base"].config["window"] == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scales": {"mini": {"steps": {"corpus": {}, "bsae": {}}}}}, "names 'bsae', which is no step"),
        ({"scales": {"mini": {"steps": {"base": {}}}}}, "needs @corpus, which scale mini does not make"),
        ({"scales": {"midi": {}}}, "midi"),
        ({"claims": []}, "claims"),
        ({"report": [{"title": "T", "columns": ["a"], "rows": [["x", "y"]]}]}, "a row of 2 cells, 1 columns"),
        ({"report": [{"title": "T"}]}, "exactly one of rows, records, series and grid"),
        ({"stesp": {}}, "did you mean 'steps'"),
    ],
)
def test_mistakes_are_one_line(tmp_path, change, said):
    with pytest.raises(ConfigError) as refused:
        read_recipe(written(tmp_path, "one", RECIPE | change))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_recipe_names_the_known():
    with pytest.raises(ConfigError, match="deng2020/table1"):
        load_recipe("deng2020/table9")


def test_merging_and_references():
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": 5}) == {"a": {"b": 1, "c": 4}, "d": 3, "e": 5}
    assert list(references({"a": ["@x", {"b": "@y.z"}], "c": "=v", "d": 3}, "@")) == ["x", "y.z"]


def test_an_energy_may_be_made_of_a_product():
    """KIND:@step is that kind over the step's product; an at sign elsewhere refers to nothing."""
    values = {"a": ["frequency:@words", "@lm"], "b": "who@home", "c": "frequency:words.txt"}
    assert list(references(values, "@")) == ["words", "lm"]
    replaced = with_products(values, {"words": "/store/1", "lm": "/store/2"})
    assert replaced == {"a": ["frequency:/store/1", "/store/2"], "b": "who@home", "c": "frequency:words.txt"}
    assert first_made({"a": "frequency:@x|y"}, {"y"}) == {"a": "frequency:@y"}


def test_the_recipes_of_the_issue_are_there():
    wanted = {f"deng2020/{item}" for item in ("table1", "table2", "table3", "fig1", "fig2", "fig3", "pretrained")}
    wanted |= {f"bakhtin2019/{item}" for item in ("table2", "table3", "table4", "table5", "table7", "fig1")}
    tables = ("fig3_1", "table3_1", "table3_2", "table4_1", "table4_2", *(f"table5_{n}" for n in range(1, 7)))
    wanted |= {f"goyal2021/{item}" for item in tables}
    assert wanted <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_scales_and_published_numbers(name):
    """Of the scale between, which only long runs use, every step is checked here as the run would; it says of its own
    how long it takes, and a scale that trains from seeds how often."""
    recipe = load_recipe(name)
    assert set(recipe.scales) == {"mini", "desk", "paper"}
    desk, mini = recipe.scales["desk"], recipe.scales["mini"]
    assert desk.minutes and mini.minutes and (name in SAME or desk.minutes > mini.minutes), "as long as mini?"
    for step_name, step in recipe.steps_at("desk").items():
        if step.make != GRID and step_name != CORPUS:
            verb_class(step.make).checked(step.config, origin=f"{name}, step {step_name!r}")
    assert all(claim.published for claim in recipe.claims)
    for scale in recipe.scales.values():
        assert scale.steps and (scale.corpora or "corpus" not in scale.steps)


def test_a_scale_has_seeds_of_its_own_and_its_corpora_come_first(tmp_path):
    corpora = {"a": {"sources": ["x"]}, "b": {"sources": ["y"]}}
    scales = {
        "mini": {"corpora": corpora, "steps": RECIPE["scales"]["mini"]["steps"]},
        "desk": {"like": "mini", "seeds": 3, "corpora": {"b": {}, "c": {"sources": ["z"]}}},
    }
    recipe = read_recipe(written(tmp_path, "one", RECIPE | {"scales": scales}))
    assert list(recipe.scales["mini"].corpora) == ["a", "b"] and recipe.scales["mini"].seeds == 1
    assert list(recipe.scales["desk"].corpora) == ["b", "c", "a"] and recipe.scales["desk"].seeds == 3
    assert recipe.scales["desk"].corpora["b"] == {"sources": ["y"]}
