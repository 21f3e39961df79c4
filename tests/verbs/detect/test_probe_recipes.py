"""The probes of bakhtin2019 as recipes: planned on every choice of corpora, sharing one energy; choosing references."""

import pytest
import yaml

from energylm.errors import ConfigError
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.job import Job
from energylm.verbs import AttackEnergy, CompareEnergies, MakeNegatives, PerturbTexts
from energylm.verbs.recipes.claims import judge
from energylm.verbs.recipes.recipe import first_made, load_recipe
from energylm.verbs.recipes.reproducing import _section, plan_recipe

PROBES = {
    "fig2": {"perturb"},
    "fig3": {"unit_differences", "linear_differences"},
    "appendix_f": {"to_real", "to_fake", "to_real_fluent", "to_fake_fluent"},
}


@pytest.mark.parametrize(("scale", "corpus"), [("mini", "sotu-halves"), ("paper", "books-news-wiki")])
def test_the_probes_are_made_and_share_their_energy(scale, corpus, tmp_path):
    plans = {
        name: plan_recipe(f"bakhtin2019/{name}", scale=scale, corpus=corpus, store=ArtefactStore(tmp_path))
        for name in PROBES
    }
    keys = {name: {step.name: step.key for step in plan.steps} for name, plan in plans.items()}
    for name, probes in PROBES.items():
        assert probes <= keys[name].keys()
    energy = "unit_on_big_wiki" if scale == "paper" else "unit_on_big_modern"
    assert len({of[energy] for of in keys.values()}) == 1
    (trained,) = [step for step in plans["fig2"].steps if step.name == energy]
    assert len(trained.identity["negatives"]) == 2, "ends and beginnings: both sides are generated in training"


def test_the_shared_part_is_the_one_of_the_tables():
    assert {load_recipe(f"bakhtin2019/{name}").uses for name in PROBES} == {"_generators"}


def test_the_first_alternative_that_is_made():
    value = {"a": "@x|y", "b": ["@y|x", "@z|w", 3], "c": "plain | text"}
    assert first_made(value, {"y"}) == {"a": "@y", "b": ["@y", "@z", 3], "c": "plain | text"}
    assert first_made(value, {"x", "y", "w"}) == {"a": "@x", "b": ["@y", "@w", 3], "c": "plain | text"}


def test_a_reference_that_no_corpus_makes_is_refused(tmp_path):
    recipe = load_recipe("bakhtin2019/fig2").model_dump(mode="json", exclude_unset=True) | {"uses": None}
    recipe["steps"]["perturb"]["config"]["energy"] = "@unit_on_bgi_wiki|unit_on_big_modrn"
    file = tmp_path / "misspelt.yaml"
    file.write_text(yaml.safe_dump(recipe))
    with pytest.raises(ConfigError, match=r"step 'perturb' needs @unit_on_bgi_wiki\|unit_on_big_modrn"):
        plan_recipe(str(file), scale="mini", corpus="sotu-halves", store=ArtefactStore(tmp_path / "store"))


@pytest.fixture(scope="module")
def results(model_folder, energy_folder, corpus_folder, tmp_path_factory):
    """What the probes find on tiny models, under the names that the recipes give their steps."""
    root, corpus, models = tmp_path_factory.mktemp("negatives"), str(corpus_folder), {"energy": str(energy_folder)}
    for seed in (0, 1):
        sizes = {"k": 1, "length": 20, "prefix_tokens": (12,), "contexts": 6, "seed": seed}
        MakeNegatives(corpus=corpus, language_model=str(model_folder), split="valid", **sizes).run(
            Job(output=root / str(seed))
        )
    both, lm = [str(root / "0"), str(root / "1")], {"language_model": str(model_folder)}
    sizes = {"length": 8, "ends": 2, "texts": 3, "entity": " a", "split": "train"}
    found = {"perturb": PerturbTexts(**models, **lm, source=corpus, **sizes).run().to_json()}
    study = CompareEnergies(**models, negatives=both, corpus=corpus, margin=(0.1, 0, 1)).run()
    found |= dict.fromkeys(PROBES["fig3"], study.to_json())
    texts = {"negatives": both[0], "corpus": corpus, "texts": 4, "fidelity_pairs": 8}
    start = AttackEnergy(**models, **lm, **texts, threshold=-1e9, edits=1).run()
    threshold = max(text.edits[0].energy for text in start.texts) + 1e-3  # one edit is enough
    flips = AttackEnergy(**models, **lm, **texts, threshold=threshold).run()
    assert flips.flipped
    return found | dict.fromkeys(PROBES["appendix_f"], flips.to_json())


@pytest.mark.parametrize("name", PROBES)
def test_reports_and_claims_find_their_numbers(name, results):
    recipe = load_recipe(f"bakhtin2019/{name}")
    assert all(_section(section, results) for section in recipe.report)
    verdicts = [judge(claim.says, claim.holds_if, [results]).verdict for claim in recipe.claims]
    assert set(verdicts) <= {"holds", "does not hold"}
    lost = {step: {"rows": []} for step in results}
    assert judge("teeth", recipe.claims[0].holds_if, [lost]).verdict == "cannot be told"
