"""`energylm lm train` as a person types it."""

import json

import pytest
from typer.testing import CliRunner

from energylm.cli.lm import app
from energylm.errors import ConfigError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    from energylm.config.corpus import CorpusConfig
    from energylm.pipelines.build_corpus import build_corpus

    folder = tmp_path_factory.mktemp("corpus")
    (folder / "lines.txt").write_text("\n".join(f"line {i} is followed by line {i + 1}" for i in range(300)))
    values = {"sources": [str(folder / "lines.txt")], "format": "lines", "vocabulary_size": 300, "valid_fraction": 0.2}
    build_corpus(CorpusConfig.checked(values), output=folder / "corpus")
    return folder / "corpus"


def invoke(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)


SMALL = ("--window", 16, "--steps", 4, "--set", "network.width=16", "--set", "training.global_batch=2")


def test_train_then_nothing_to_do(corpus, tmp_path):
    report = tmp_path / "result.json"
    first = invoke(corpus, "--output", tmp_path / "run", *SMALL, "--json", report)
    assert first.exit_code == 0
    assert str(tmp_path / "run" / "model") in first.stdout and "perplexity" in first.stdout
    assert len(first.stdout.splitlines()) == 1
    written = json.loads(report.read_text())
    assert written["steps"] == 4 and written["best_perplexity"]["convention"] and not written["was_finished"]
    second = invoke(corpus, "--output", tmp_path / "run", *SMALL)
    assert second.exit_code == 0 and "nothing to do" in second.stderr and second.stdout == first.stdout


def test_dry_run_writes_nothing(corpus, tmp_path):
    done = invoke(corpus, "--output", tmp_path / "run", *SMALL, "--direction", "right-to-left", "--dry-run")
    assert done.exit_code == 0 and not (tmp_path / "run").exists()
    for part in ("would train", "tiny", "right-to-left", "4 steps of 2 windows of 16 tokens"):
        assert part in done.stdout


def test_config_file_flags_and_settings(corpus, tmp_path):
    """The file is below flags, flags below --set; the corpus may stand in the file."""
    file = tmp_path / "lm.yaml"
    file.write_text(f"corpus: {corpus}\nwindow: 12\npreset: mini\ntraining:\n  preset: deng2020/base-lm\n  steps: 9\n")
    settings = ("--set", "training.schedule.warmup_steps=0", "--set", "training.steps=7")
    done = invoke(
        "--config", file, "--output", tmp_path / "run", "--preset", "tiny", "--steps", 8, *settings, "--dry-run"
    )
    assert done.exit_code == 0
    assert "tiny" in done.stdout and "7 steps of 32 windows of 12 tokens" in done.stdout


def test_mistakes_are_one_line(corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'training\.optimizer\.learning_rate'"):
        invoke(corpus, "--output", tmp_path / "run", "--set", "training.optimizer.learningrate=1")
    with pytest.raises(ConfigError, match="direction"):
        invoke(corpus, "--output", tmp_path / "run", "--direction", "sideways")
    with pytest.raises(ConfigError, match="CORPUS is missing"):
        invoke("--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()
