"""`energylm reproduce` as a person types it."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from energylm.cli.reproduce import reproduce
from energylm.errors import ConfigError


def invoke(*arguments):
    app = typer.Typer()
    app.command()(reproduce)
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def recipe(tmp_path, texts_folder):
    training = {"steps": 2, "global_batch": 2, "validation": {"every_steps": 2}, "threads": 1}
    values = {
        "title": "One model",
        "where": "nowhere",
        "about": "One model.",
        "steps": {
            "corpus": {"make": "corpus", "config": {"vocabulary_size": 300}},
            "lm": {"make": "lm", "config": {"corpus": "@corpus", "window": 8, "network": {"width": 16, "layers": 1}}},
        },
        "scales": {
            "mini": {
                "corpora": {"texts": {"sources": [str(texts_folder)]}},
                "steps": {"corpus": {}, "lm": {"training": training}},
            }
        },
        "report": [{"title": "Numbers", "columns": ["perplexity"], "rows": [["=lm.perplexity"]]}],
        "claims": [
            {"says": "it knows something", "holds_if": "lm.perplexity < 1000", "published": "17.57"},
            {"says": "it knows everything", "holds_if": "lm.perplexity < 1.5"},
        ],
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "toy.yaml"


def test_claims_and_report_on_stdout_and_results_as_json(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    planned = invoke(recipe, "--dry-run")
    assert planned.exit_code == 0 and "2 of 2 steps to make" in planned.stdout and not (tmp_path / "home").exists()
    done = invoke(recipe, "--output", tmp_path / "out", "--json", tmp_path / "kept.json")
    first, second, page = done.stdout.splitlines()
    assert first.startswith("holds: it knows something: lm.perplexity = ") and first.endswith("(published: 17.57)")
    assert second.startswith("does not hold: it knows everything") and done.exit_code == 0  # a result, not an error
    assert page == str(tmp_path / "out" / "report.html")
    assert json.loads((tmp_path / "kept.json").read_text()) == json.loads(
        (tmp_path / "out" / "results.json").read_text()
    )
    assert "0 of 2 steps to make" in invoke(recipe, "--dry-run").stdout


def test_list():
    done = invoke("--list")
    assert done.exit_code == 0 and "deng2020/table1" in done.stdout and "table 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "name a recipe"), (("deng2020/table1", "--scale", "maxi"), "unknown scale"), (("tabel1",), "unknown recipe")],
)
def test_mistakes_are_one_line(arguments, said):
    with pytest.raises(ConfigError, match=said) as refused:
        invoke(*arguments)
    assert "\n" not in str(refused.value)
