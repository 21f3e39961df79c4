"""`energylm negatives` and `energylm energy train` as a person types them."""

import json

import pytest
import typer
from typer.testing import CliRunner

from energylm.cli import energy
from energylm.cli.negatives import negatives
from energylm.errors import ConfigError


@pytest.fixture(scope="module")
def app():
    program = typer.Typer()
    program.command("negatives")(negatives)
    program.add_typer(energy.app, name="energy")
    return program


@pytest.fixture
def invoke(app):
    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)

    return run


def test_from_a_corpus_to_an_energy(invoke, corpus_folder, model_folder, tmp_path):
    made = ("negatives", corpus_folder, "--lm", model_folder, "-o", tmp_path / "n", "-k", 2, "--length", 24)
    made += ("--prefix-tokens", 12, "--prefix-tokens", 16, "--contexts", 60, "--seed", 3)
    dry = invoke(*made, "--dry-run")
    assert dry.exit_code == 0 and not (tmp_path / "n").exists()
    assert "would generate 2 continuations of 60 contexts of 12 or 16 tokens up to 24" in dry.stdout
    first = invoke(*made, "--json", tmp_path / "n.json")
    assert first.exit_code == 0 and "60 contexts × 2 continuations" in first.stdout and "tokens/s" in first.stdout
    assert json.loads((tmp_path / "n.json").read_text())["contexts"] == 60
    assert "nothing to do" in invoke(*made).stderr

    small = ("--set", "network.width=16", "--set", "network.layers=1", "--set", "validation_fraction=0.4", "--batch", 4)
    train = ("energy", "train", tmp_path / "n", "--corpus", corpus_folder, "--init", "bit-tiny", *small)
    train += ("--output", tmp_path / "run", "--steps", 3, "--learning-rate", "1e-3", "--lm", model_folder)
    dry = invoke(*train, "--kind", "bit", "--dry-run")
    assert dry.exit_code == 0 and "bit energy from bit-tiny" in dry.stdout and not (tmp_path / "run").exists()
    done = invoke(*train, "--json", tmp_path / "run.json")
    assert done.exit_code == 0 and "accuracy" in done.stdout and "before calibration" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["steps"] == 3 and written["scale"] > 0 and not written["was_finished"]
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "model" / "energylm.json").exists()
    again = invoke(*train)
    assert "nothing to do" in again.stderr and again.stdout == done.stdout


def test_mistakes_are_one_line(invoke, corpus_folder, model_folder, tmp_path):
    with pytest.raises(ConfigError, match="shorten the context"):
        invoke("negatives", corpus_folder, "--lm", model_folder, "-o", tmp_path / "n", "--length", 24)
    with pytest.raises(ConfigError, match="--lm is missing"):
        invoke("negatives", corpus_folder, "-o", tmp_path / "n")
    with pytest.raises(ConfigError, match="kind"):
        invoke("energy", "train", "n", "--corpus", "c", "--init", "tiny", "--kind", "both", "-o", tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown preset"):
        invoke("energy", "train", "n", "--corpus", "c", "--init", "tiny", "--preset", "deng", "-o", tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_union_by_another_loss(invoke, corpus_folder, model_folder, tmp_path):
    """Two folders, a corpus each, validation of its own; what was chosen is said."""
    for name, split, seed in (("a", "train", 1), ("b", "train", 2), ("v", "valid", 1)):
        made = ("negatives", corpus_folder, "--lm", model_folder, "-o", tmp_path / name, "-k", 2, "--length", 24)
        assert invoke(*made, "--prefix-tokens", 12, "--contexts", 20, "--split", split, "--seed", seed).exit_code == 0
    train = ("energy", "train", tmp_path / "a", tmp_path / "b", "--corpus", corpus_folder, "--corpus", corpus_folder)
    train += ("--init", "bilstm-tiny", "--set", "network.width=8", "--objective", "ranking", "--margin", 0.25, "-k", 2)
    train += ("--validation", tmp_path / "v", "--steps", 3, "--batch", 4, "--output", tmp_path / "run")
    dry = invoke(*train, "--dry-run")
    assert "bilstm energy from bilstm-tiny" in dry.stdout and "40 contexts of 2 sources" in dry.stdout
    assert "ranking with margin 0.25, 3 steps of 4 contexts with 2 negatives each" in dry.stdout
    done = invoke(*train)
    assert done.exit_code == 0 and "P@1" in done.stdout and (tmp_path / "run/model/energylm.json").exists()
    with pytest.raises(ConfigError, match="is of kind 'bilstm', not 'linear'; take one of: linear"):
        invoke(*train, "--kind", "linear")
