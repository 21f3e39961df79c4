"""The cost of a plan: by hand on a made-up machine; within 30 % of what kept recipes took; what is unknown is said."""

from pathlib import Path

import pytest
import yaml

from energylm.errors import ConfigError, DataError
from energylm.files import read_json, write_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.costs import CorpusSize, GeneratedTexts, Surroundings, bytes_per_token
from energylm.models.compute import Network, updating
from energylm.verbs.recipes import plan_cost as module
from energylm.verbs.recipes.demo import TinyDemo
from energylm.verbs.recipes.plan import MachineConfig, Plan
from energylm.verbs.recipes.plan_cost import fit_factors, plan_cost, save_factors, seconds_of, timed_steps, unit_seconds
from energylm.verbs.recipes.recipe import GRID, load_recipe, recipe_names
from energylm.verbs.recipes.steps import step_verb
from energylm.verbs.table import verb_class
from energylm.verbs.verb import Verb

MACHINE = MachineConfig(
    matmul_gflops=100, memory_gigabytes_per_second=10, operation_microseconds=5, text_megabytes_per_second=2
)
TIMED = Path(__file__).parent / "timed"  # of kept results: docs/results may be made again on a busy machine
DEMO_SECONDS = 228  # of its five steps on the machine of the factors, alone on both cores
TRAINING = {"steps": 10, "global_batch": 4, "validation": {"every_steps": None}}


GPU = {
    "name": "a GPU",
    "matmul_gflops": 60_000,
    "memory_gigabytes_per_second": 1500,
    "operation_microseconds": 5,
    "text_megabytes_per_second": 6,
    "network_gigabytes_per_second": 20,
}


def count_step(kind, values, around):
    return step_verb(kind, values).cost(around)


@pytest.fixture
def around():
    """A corpus of a million tokens, a language model and negatives of it, all of them still to be made."""
    products = {
        "corpus": CorpusSize({"train": 9e5, "valid": 5e4, "test": 5e4}, 1000),
        "lm": Network.of_preset("tiny", {}, vocabulary_size=1000),
        "negatives": GeneratedTexts(contexts=640, k=2, length=32),
    }
    return Surroundings(products, read_json(module.FACTORS_FILE))


def test_training_by_hand(around):
    """Ten updates of four windows of 16 tokens, no validation."""
    values = {"corpus": "corpus", "preset": "tiny", "window": 16, "training": TRAINING}
    counted = count_step("lm train", values, around)
    update = updating(around.products["lm"], rows=4, length=16, predicted=64)
    assert counted.quantities["training.flops"] == pytest.approx(10 * update.flops)
    assert counted.quantities["training.operations"] == pytest.approx(10 * update.operations)
    assert counted.product == around.products["lm"] and "reading.flops" not in counted.quantities
    twice = count_step("lm train", {**values, "training": {**TRAINING, "steps": 20}}, around)
    assert twice.flops == pytest.approx(2 * counted.flops)
    validated = count_step("lm train", {**values, "training": {**TRAINING, "validation": {"every_steps": 5}}}, around)
    assert validated.quantities["reading.flops"] > 0


def test_seconds_are_quantities_times_rates_times_factors():
    """2e11 operations at 1e11 a second and a factor of 3; 1e9 bytes at 1e10; 1e6 launches of 5 µs; 4 MB of text."""
    quantities = {"training.flops": 2e11, "training.bytes": 1e9, "reading.operations": 1e6, "text.encoded": 4e6}
    factors = {"training.flops": 3.0, "training.bytes": 1.0, "reading.operations": 1.0, "text.encoded": 1.0}
    assert seconds_of(quantities, MACHINE, factors) == pytest.approx(6 + 0.1 + 5 + 2)
    assert unit_seconds("start.lm train", MACHINE) == 1.0 and unit_seconds("network.bytes", MACHINE) == 1e-9


def test_more_processes_share_the_work_and_talk_to_each_other(around):
    values = {"corpus": "corpus", "preset": "big", "window": 160, "training": {**TRAINING, "global_batch": 32}}
    alone = count_step("lm train", values, around)
    spread = Surroundings(around.products, around.facts, world=Plan(recipe="demo", nodes=2, processes=4).world)
    shared = count_step("lm train", values, spread)
    assert shared.flops == pytest.approx(alone.flops / 8)
    assert shared.quantities["network.bytes"] == pytest.approx(10 * 2 * 4 * alone.product.parameters * 7 / 8)
    assert shared.memory_bytes < alone.memory_bytes


def test_negatives_of_all_windows_and_of_some(around):
    values = {"corpus": "corpus", "language_model": "lm", "length": 32, "prefix_tokens": [16], "k": 2}
    everything = count_step("negatives", values, around)
    assert everything.product == GeneratedTexts(pytest.approx(9e5 / 32), 2, 32)
    some = count_step("negatives", {**values, "contexts": 640}, around)
    assert some.product == GeneratedTexts(640, 2, 32) and some.flops < everything.flops / 40


def test_a_causal_energy_is_cheaper_than_a_bidirectional_one(around):
    values = {"language_model": "lm", "source": "corpus", "length": 160, "prefix_tokens": 120, "contexts": 10, "n": 100}
    around.products["unit"] = Network.of_preset("mini", {}, vocabulary_size=1000)
    around.products["bit"] = Network.of_preset("bit-mini", {}, vocabulary_size=1000)
    unit, bit = (count_step("perplexity", {**values, "energy": name}, around) for name in ("unit", "bit"))
    assert unit.quantities["reading.flops"] < 0.4 * bit.quantities["reading.flops"]  # 120 of 160 tokens are read once
    assert unit.quantities["drawing.flops"] == bit.quantities["drawing.flops"]


def test_kinds_without_counted_work_are_named(around):
    assert count_step("bench", {"name": "list"}, around) is None


def test_every_kind_of_step_that_recipes_make_is_counted():
    """Teeth: a verb that no recipe makes is not."""
    kinds = {step.make for name in recipe_names() for step in load_recipe(name).steps.values()} - {GRID}
    kinds |= {"discrimination", "likelihood", "grid cells"}  # what grids are taken apart into
    assert {kind for kind in kinds if verb_class(kind).cost is Verb.cost} == set()
    assert verb_class("evaluate blimp").cost is Verb.cost


def test_completions_of_a_study_are_drawn_and_judged(around):
    """A base alone draws one text of a prefix; with an energy it draws all candidates, and the energy reads them."""
    around.products["bit"] = Network.of_preset("bit-mini", {}, vocabulary_size=1000)
    values = {"source": "corpus", "length": 32, "prefix_tokens": 16, "pairs": 10}
    models = [{"name": "a", "language_model": "lm"}, {"name": "b", "language_model": "lm"}]
    alone = count_step("study", {**values, "models": models}, around)
    joint = [models[0], {"name": "b", "language_model": "lm", "energy": "bit", "candidates": 64}]
    both = count_step("study", {**values, "models": joint}, around)
    assert "reading.flops" not in alone.quantities and both.quantities["reading.flops"] > 0
    assert both.quantities["drawing.flops"] > 10 * alone.quantities["drawing.flops"]
    assert count_step("study-panel", {"study": "study"}, around).flops == 0


def test_what_is_not_known_is_said(around):
    with pytest.raises(ConfigError, match=r"the size of hf:some/where is not known here; say --text-gigabytes"):
        count_step("corpus build", {"sources": ["hf:some/where"]}, around)
    with pytest.raises(ConfigError, match="sizes of model 'no-such-model' are not known"):
        count_step("negatives", {"corpus": "corpus", "language_model": "no-such-model"}, around)
    told = Surroundings(around.products, around.facts, text_gigabytes=2)
    assert count_step("corpus build", {"sources": ["hf:some/where"]}, told).quantities["text.encoded"] == 2e9


def recipe_file(folder, texts_folder):
    learn = {"corpus": "@corpus", "window": 12, "training": {**TRAINING, "threads": 1}}
    steps = {
        "corpus": {"make": "corpus build", "config": {"vocabulary_size": 300}},
        "narrow": {"make": "lm train", "config": {**learn, "network": {"width": 16, "layers": 1}}},
        "wide": {"make": "lm train", "config": {**learn, "network": {"width": 64, "layers": 1}}},
    }
    recipe = {
        "title": "Two widths",
        "where": "nowhere",
        "about": "A narrow and a wide language model.",
        "steps": steps,
        "scales": {
            "mini": {"corpora": {"texts": {"sources": [str(texts_folder)]}}, "steps": {name: {} for name in steps}}
        },
        "report": [{"title": "Sizes", "columns": ["n", "w"], "rows": [["=narrow.parameters", "=wide.parameters"]]}],
        "claims": [{"says": "wide is wider", "holds_if": "wide.parameters > narrow.parameters"}],
    }
    (folder / "toy.yaml").write_text(yaml.safe_dump(recipe))
    return str(folder / "toy.yaml")


def test_a_recipe_step_by_step_and_what_is_there_costs_nothing(tmp_path, texts_folder):
    from energylm.verbs.recipes.reproducing import reproduce

    file, store = recipe_file(tmp_path, texts_folder), ArtefactStore(tmp_path / "store")
    config = Plan(recipe=file)
    before = plan_cost(config, MACHINE, store=store)
    assert [step.name for step in before.steps] == ["corpus", "narrow", "wide"]
    assert before.seconds > 0 and before.steps[2].flops > before.steps[1].flops > 0
    assert before.memory_bytes > 5e8 and before.disk_bytes > 0
    done = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    after = plan_cost(config, MACHINE, store=store)
    assert after.seconds == 0 and after.left == [] and [row[2] for row in after.table.rows] == ["is there"] * 3
    fresh = plan_cost(config.model_copy(update={"fresh": True}), MACHINE, store=store)
    assert fresh.seconds == pytest.approx(before.seconds, rel=0.05)  # the corpus is now known exactly
    assert fresh.to_json()["not_counted"] == [] and "3 of 3 steps" in fresh.sums()[0]

    results = read_json(done.results)
    for row, seconds in zip(results["sections"]["steps"]["rows"], (2.0, 3.0, 5.0), strict=True):
        row["seconds when made"] = seconds  # of a machine that nobody else uses
    write_json(tmp_path / "kept.json", results)
    fitted = fit_factors([tmp_path / "kept.json"], MACHINE, store=store)
    assert fitted.total_over_measured == pytest.approx(1, abs=0.01)
    assert 1 <= fitted.factors["training.flops"] <= 2.5
    write_json(tmp_path / "factors.json", {"factors": {"drawing.flops": 2.0, "training.flops": 9.0}})
    save_factors(fitted, tmp_path / "factors.json")
    kept = read_json(tmp_path / "factors.json")["factors"]
    assert kept["drawing.flops"] == 2.0 and kept["training.flops"] == fitted.factors["training.flops"]


def test_what_does_not_fit_is_said(tmp_path, texts_folder):
    small = MACHINE.model_copy(update={"memory_gigabytes": 0.1, "disk_gigabytes": 1e-6})
    config = Plan(recipe=recipe_file(tmp_path, texts_folder))
    said = plan_cost(config, small, store=ArtefactStore(tmp_path)).sums()
    assert "does not fit into the 0 GB of memory" in said[1] and "does not fit onto" in said[2]


def test_a_file_without_times_is_no_kept_result(tmp_path):
    write_json(tmp_path / "a.json", {"title": "something else entirely"})
    with pytest.raises(DataError, match="no result with timed steps"):
        fit_factors([tmp_path / "a.json"], MACHINE)


def machine_of_the_factors():
    return MachineConfig.checked(read_json(module.FACTORS_FILE)["measured_on"])


@pytest.mark.parametrize(
    "kept",
    ["deng2020-table1-mini-news", *(f"bakhtin2019-{table}-mini-books-news-wiki" for table in ("table2", "table4"))],
)
def test_kept_recipes_took_what_the_plan_says(kept, data_folder, tmp_path):
    """Within 30 % in all, and every step of more than ten seconds within a factor of 1.5. The mistake: a machine twice
    as fast.

    Table 4 was not used to fit the factors, but shares its generators with table 2. By factors fitted to deng2020 and
    the demo alone, tables 2 and 4 come out at 1.17 and 1.03 of their times; by factors fitted to these two and the
    demo, deng2020's table 1 at 0.95."""
    file, machine, store = TIMED / f"{kept}.json", machine_of_the_factors(), ArtefactStore(tmp_path)
    quantities, seconds = timed_steps(file, machine, store)
    factors = read_json(module.FACTORS_FILE)["factors"]
    planned = [seconds_of(one, machine, factors) for one in quantities]
    assert 0.7 < sum(planned) / sum(seconds) < 1.3
    assert all(1 / 1.5 < a / b < 1.5 for a, b in zip(planned, seconds, strict=True) if b > 10)
    fast = machine.model_copy(
        update={
            "matmul_gflops": 2 * machine.matmul_gflops,
            "memory_gigabytes_per_second": 2 * machine.memory_gigabytes_per_second,
            "operation_microseconds": machine.operation_microseconds / 2,
        }
    )
    assert sum(seconds_of(one, fast, factors) for one in quantities) / sum(seconds) < 0.7


def test_the_demo_takes_what_the_plan_says(tmp_path):
    plan = plan_cost(Plan(recipe="demo"), machine_of_the_factors(), store=ArtefactStore(tmp_path))
    assert [step.kind for step in plan.steps] == ["corpus build", "lm train", "negatives", "energy train", "perplexity"]
    assert 0.7 < plan.seconds / DEMO_SECONDS < 1.3
    assert TinyDemo().energy.init is None  # the plan stands for the encoder that the demo fetches


def test_longer_vocabularies_hold_more_bytes_a_token():
    assert bytes_per_token(2048) < bytes_per_token(50_000) < 5


@pytest.fixture
def machine_file(tmp_path):
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(GPU))
    return str(tmp_path / "gpu.yaml")


def test_a_paper_on_a_cluster_without_its_data(machine_file, tmp_path, energylm_command):
    arguments = ["--scale", "paper", "--corpus", "news", "--machine", machine_file, "--nodes", 8, "--processes", 8]
    done = energylm_command("plan", "deng2020/table1", *arguments, "--json", tmp_path / "plan.json")
    assert done.exit_code == 0 and "of memory" in done.stdout
    found = read_json(tmp_path / "plan.json")
    assert found["processes"] == 64 and found["seconds"] > 3600 and found["flops"] > 1e18
    assert {step["kind"] for step in found["steps"]} == {
        "corpus build", "lm train", "pretrain mlm", "negatives", "energy train", "perplexity",
    }  # fmt: skip


def test_the_demo_on_this_machine(tmp_path, energylm_command):
    assert energylm_command("plan", "--measure", tmp_path / "here.yaml").exit_code == 0
    rates = yaml.safe_load((tmp_path / "here.yaml").read_text())
    assert rates["matmul_gflops"] > 0.1 and rates["memory_gigabytes"] > 0.5
    done = energylm_command("plan", "demo", "--machine", tmp_path / "here.yaml")
    assert done.exit_code == 0 and "the demo from scratch: " in done.stdout and "5 of 5 steps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a recipe"),
        (["deng2020/table9"], "unknown recipe"),
        (["demo", "--nodes", 0], "nodes"),
        (["demo", "--machine", "nowhere.yaml"], "nowhere.yaml"),
        (["demo", "--scale", "huge"], "scale"),
    ],
)
def test_mistakes_are_one_line(energylm_command, arguments, message):
    done = energylm_command("plan", *arguments)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and message in done.stderr
