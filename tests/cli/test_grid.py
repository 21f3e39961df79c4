"""`energylm grid` as a person types it."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from energylm.cli.grid import grid
from energylm.errors import ConfigError


def invoke(*arguments):
    app = typer.Typer()
    app.command()(grid)
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def file(tmp_path, corpus_folder, model_folder, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    training = {"steps": 2, "global_batch": 2, "validation": {"every_steps": 2}, "threads": 1}
    values = {
        "corpora": {"tales": str(corpus_folder)},
        "generators": {
            "mine": {"lm": str(model_folder)},
            "small": {"train": {"window": 16, "network": {"width": 16, "layers": 1}, "training": training}},
        },
        "energies": {"linear": {"init": "linear", "settings": {"training": training}}},
        "negatives": {"length": 16, "context_lengths": [8], "k": 1},
        "contexts": {"train": 20, "valid": 12, "test": 12},
        "training": [{"generators": ["small"]}],
        "resamples": 20,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "study.yaml"


def test_plan_run_and_run_again(file, tmp_path):
    planned = invoke(file, "--dry-run")
    assert planned.exit_code == 0 and not (tmp_path / "home").exists()
    assert "cell      linear trained on small_tales, tested on mine_tales: unseen" in planned.stdout
    assert planned.stdout.rstrip().endswith("10 of 10 steps to make, 2 cells")
    done = invoke(file, "--output", tmp_path / "out", "--json", tmp_path / "kept.json")
    *cells, page = done.stdout.splitlines()
    assert [line.split(": accuracy")[0] for line in cells] == [
        "linear trained on small_tales, tested on mine_tales: unseen",
        "linear trained on small_tales, tested on small_tales: in-domain",
    ]
    assert page == str(tmp_path / "out" / "report.html")
    assert json.loads((tmp_path / "kept.json").read_text())["sections"]["accuracy-cells"]["rows"][0]["texts"] == 12
    assert "0 of 10 steps to make" in invoke(file, "--dry-run").stdout


def test_mistakes_are_one_line(file, tmp_path):
    for arguments, said in (
        ((file,), "--output FOLDER"),
        ((tmp_path / "none.yaml", "--dry-run"), "does not exist"),
        ((file, "--dry-run", "--set", "test.generators=[smal]"), "did you mean 'small'?"),
        ((file, "--dry-run", "--set", "contexts.tset=5"), "did you mean 'contexts.test'?"),
    ):
        with pytest.raises(ConfigError) as refused:
            invoke(*arguments)
        assert said in str(refused.value) and "\n" not in str(refused.value)
