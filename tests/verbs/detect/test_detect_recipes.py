"""Table 6 in small: detectors and their evaluations as steps, keyed by the content of the files, wherever these lie."""

import json
import shutil

import pytest
import yaml

from energylm.errors import DataError
from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs.recipes.recipe import load_recipe
from energylm.verbs.recipes.reproducing import plan_recipe, reproduce

GENERATED = [f"{domain}_{name}" for domain in ("xsum", "writing") for name in ("gpt2-xl", "gpt-neo-2.7B", "opt-2.7b")]
CHAT = [f"{domain}_gpt-3.5-turbo" for domain in ("xsum", "pubmed")]
SMALL = {
    "text_blocks": {"tokens": 32, "stride": 32},
    "fpr": 0.2,
    "probe_pairs": 8,
    "validation_fraction": 0.3,
    "training": {"steps": 4, "global_batch": 2, "threads": 1, "validation": {"every_steps": 4}},
}


@pytest.fixture
def shrunk_recipe(detection_folder, bert_folder, model_folder, tmp_path, monkeypatch):
    """A recipe of the package with a tiny encoder and a tiny language model, on made-up texts under the names of the
    real files. Every text begins with the name of its file: texts that begin alike are never
    learnt from and judged."""
    data = tmp_path / "data" / "detection"
    pairs = json.loads((detection_folder / "pairs.json").read_text())
    for folder, names in (("generated", GENERATED), ("generated_chat", CHAT)):
        (data / folder).mkdir(parents=True)
        for name in names:
            own = {column: [f"{name}: {text}" for text in texts] for column, texts in pairs.items()}
            (data / folder / f"{name}.raw_data.json").write_text(json.dumps(own))
    (data / "ghostbuster").mkdir()
    for domain in ("essay", "wp"):
        for writer, file in (("human", "human"), ("machine", "gpt")):
            lines = (detection_folder / f"{writer}.jsonl").read_text().splitlines()
            own = [json.dumps({"text": f"{domain}: {json.loads(line)['text']}"}) for line in lines]
            (data / "ghostbuster" / f"{domain}_{file}.jsonl").write_text("\n".join(own) + "\n")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "data"))

    def shrunk(name):
        values = load_recipe(name).model_dump(mode="json", exclude_unset=True)
        for step, settings in values["scales"]["mini"]["steps"].items():
            if step.endswith("detector"):
                values["scales"]["mini"]["steps"][step] = {**SMALL, "init": str(bert_folder)}
            elif step == "carry":
                settings |= {"data": {"limit": 12}, "language_model": str(model_folder), "max_tokens": 24}
                settings |= {"resamples": 20, "features": ["log-rank", "curvature"], "fpr": 0.2}
            else:
                settings["resamples"] = 20
        return values

    return shrunk


@pytest.fixture
def recipe(shrunk_recipe):
    return shrunk_recipe("bakhtin2019/table6")


def written(folder, values):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return str(folder / "recipe.yaml")


def test_in_domain_and_generalization(recipe, tmp_path):
    store, file = ArtefactStore(tmp_path / "store"), written(tmp_path, recipe)
    done = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    # Texts are told by the names of their files, too, so sets of the same content and other names are others.
    assert len({step.key for step in done.steps.values()}) == len(done.steps) == 12
    found = done.steps["gpt_35_generalization"].result
    assert found["baseline"] is not None and found["overlap"] == 0
    accuracy = found["detector"]["balanced_accuracy"]
    assert accuracy["percent"] == 100 * accuracy["value"] and "–" in accuracy["percent_ends"]
    again = reproduce(file, scale="mini", output=tmp_path / "out", store=store)
    assert all(step.reused for step in again.steps.values()) and again.claims == done.claims
    carried = done.steps["carry"].result
    assert len(carried["generator_left_out"]) == 10 and carried["features"] == ["log-rank", "curvature"]
    written_row = next(
        line for line in (tmp_path / "out" / "results.md").read_text().splitlines() if "| lowest |" in line
    )
    shown = [float(cell) for cell in written_row.split("|")[2:-1] if cell.strip() not in ("", "–")]
    expected = [carried["lowest"][name] for name in ("generator_left_out", "domain_left_out", "log_likelihood")]
    assert shown[:3] == pytest.approx(expected, abs=1e-3)
    assert len(done.claims) == 4 and all(claim.verdict != "cannot be told" for claim in done.claims)
    assert "--corpus" not in (tmp_path / "out" / "results.md").read_text()


def test_one_detector_on_other_generators_and_domains(shrunk_recipe, tmp_path):
    file = written(tmp_path, shrunk_recipe("bakhtin2019/unseen_generators"))
    done = reproduce(file, scale="mini", output=tmp_path / "out", store=ArtefactStore(tmp_path / "store"))
    assert all(claim.verdict != "cannot be told" for claim in done.claims)
    assert done.steps["carry"].result["generator_left_out"].keys() >= {"news_gpt2_xl", "abstracts_gpt_35"}
    found = done.steps["stories_neo"].result
    for shares in (found["verdict_percent"]["human"], found["verdict_percent"]["machine"]):
        assert sum(shares.values()) == pytest.approx(100)


def test_keys_follow_the_content_of_the_files(recipe, tmp_path, monkeypatch):
    store, file = ArtefactStore(tmp_path / "store"), written(tmp_path, recipe)

    def keys():
        return {step.name: step.key for step in plan_recipe(file, scale="mini", store=store).steps}

    before = keys()
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "elsewhere"))
    assert keys() == before
    human = tmp_path / "elsewhere" / "detection" / "ghostbuster" / "wp_human.jsonl"
    human.write_text(human.read_text() + '{"text": "One more."}\n')
    changed = {name for name, key in keys().items() if key != before[name]}
    assert changed == {"gpt_35_detector", "gpt_35_in_domain", "gpt_35_generalization", "carry"}
    human.unlink()
    with pytest.raises(DataError, match=r"wp_human\.jsonl does not exist; put the data set there"):
        keys()


def test_the_paper_scale_names_the_public_data(recipe, tmp_path):
    with pytest.raises(DataError, match=r"gpt-2-output-dataset/webtext\.train\.jsonl does not exist"):
        plan_recipe("bakhtin2019/table6", scale="paper", store=ArtefactStore(tmp_path / "store"))
