"""Scorers as steps of a recipe: found by content, whatever the place; numbers by the name of the set."""

import json
import shutil

import pytest

from energylm.verbs.recipes.steps import make_step, step_identity, step_verb

LISTS = {
    f"u{number}": {
        "ref": f"the clerk counts {number} boats",
        "hyp_1": {"text": f"the clerk count {number} boats", "score": -1.0},
        "hyp_2": {"text": f"the clerk counts {number} boats", "score": -1.5},
    }
    for number in range(3)
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two folders of data sets with the same content."""
    for name in ("here", "there"):
        (tmp_path / name / "blimp").mkdir(parents=True)
        (tmp_path / name / "lists.json").write_text(json.dumps(LISTS))
        (tmp_path / name / "blimp" / "order.jsonl").write_text(
            '{"sentence_good": "a boat", "sentence_bad": "boat a"}\n'
        )
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path / "here"))
    return tmp_path


def test_rerank(data, electric_folder, tmp_path):
    values = {"scorers": [str(electric_folder)], "sets": [{"lists": "data:lists.json", "dev": "data:lists.json"}]}
    found = make_step(step_verb("rerank", values), tmp_path / "out")
    outcome = found["sets"]["lists"]
    assert outcome["one_best"]["value"] == pytest.approx(20) and outcome["lists"] == 3
    assert outcome["tuning"]["value"] == outcome["reranked"]["value"] and json.dumps(found)
    assert (tmp_path / "out" / "report.html").is_file()


def test_minimal_pairs(data, electric_folder, tmp_path):
    """Those of the data folder where none are named."""
    result = make_step(step_verb("evaluate blimp", {"model": str(electric_folder)}), tmp_path / "out")
    assert result["mean"]["percent"] in (0.0, 100.0) and result["pairs"] == 1
    assert [(one["name"], one["accuracy"]["percent"]) for one in result["paradigms"]] == [
        ("order", result["mean"]["percent"])
    ]


@pytest.mark.parametrize("kind", ["rerank", "evaluate blimp"])
def test_steps_are_known_by_content(data, kind, monkeypatch):
    values = {
        "rerank": {"scorers": ["m"], "sets": [{"lists": "data:lists.json"}], "weight": [0.5]},
        "evaluate blimp": {"model": "m"},
    }[kind]

    def identity():
        return step_identity(kind, values, origin="a step")

    before = identity()
    monkeypatch.setenv("ENERGYLM_DATA", str(data / "there"))
    assert identity() == before
    shutil.rmtree(data / "there" / "blimp")
    (data / "there" / "blimp").mkdir()
    (data / "there" / "lists.json").write_text(json.dumps({"u0": LISTS["u0"]}))
    assert identity() != before
