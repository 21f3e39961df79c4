"""`energylm lm train` as a person types it."""

import json
import sys

import pytest

from energylm.cli.main import main
from energylm.jobs.job import Job
from energylm.verbs import BuildCorpus
from energylm.verbs.lm.working import LMRun


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "lines.txt").write_text("\n".join(f"line {i} is followed by line {i + 1}" for i in range(300)))
    values = {"sources": [str(folder / "lines.txt")], "format": "lines", "vocabulary_size": 300, "valid_fraction": 0.2}
    BuildCorpus(**values).run(Job(output=folder / "corpus"))
    return folder / "corpus"


@pytest.fixture
def train(monkeypatch, capsys):
    """Run `energylm lm train …` in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", "lm", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code or 0, *capsys.readouterr()

    return run


SMALL = ("--window", 16, "--steps", 4, "--set", "network.width=16", "--set", "training.global_batch=2")


def test_train_then_nothing_to_do(train, corpus, tmp_path):
    report = tmp_path / "result.json"
    code, first, _ = train(corpus, "--output", tmp_path / "run", *SMALL, "--json", report)
    assert code == 0
    assert str(tmp_path / "run" / "model") in first and "perplexity" in first
    assert len(first.splitlines()) == 1
    written = json.loads(report.read_text())
    assert written["steps"] == 4 and written["best_perplexity"]["convention"] and not written["was_finished"]
    assert LMRun.from_json(written).to_json() == written
    code, second, err = train(corpus, "--output", tmp_path / "run", *SMALL)
    assert code == 0 and "nothing to do" in err and second == first


def test_dry_run_writes_nothing(train, corpus, tmp_path):
    code, out, _ = train(corpus, "--output", tmp_path / "run", *SMALL, "--direction", "right-to-left", "--dry-run")
    assert code == 0 and not (tmp_path / "run").exists()
    for part in ("would train", "tiny", "right-to-left", "4 steps (0.0533 epochs) of 2 windows of 16 tokens"):
        assert part in out


def test_config_file_flags_and_settings(train, corpus, tmp_path):
    """The file is below flags, flags below --set; the corpus may stand in the file."""
    file = tmp_path / "lm.yaml"
    file.write_text(f"corpus: {corpus}\nwindow: 12\npreset: mini\ntraining:\n  preset: deng2020/base-lm\n  steps: 9\n")
    settings = ("--set", "training.schedule.warmup_steps=0", "--set", "training.steps=7")
    code, out, _ = train(
        "--config", file, "--output", tmp_path / "run", "--preset", "tiny", "--steps", 8, *settings, "--dry-run"
    )
    assert code == 0
    assert "tiny" in out and "7 steps (1.11 epochs) of 32 windows of 12 tokens" in out


def test_mistakes_are_one_line(train, corpus, tmp_path):
    output = ("--output", tmp_path / "run")
    for arguments, words in (
        ((corpus, *output, "--set", "training.optimizer.learningrate=1"), "'training.optimizer.learning_rate'"),
        ((corpus, *output, "--direction", "sideways"), "--direction: Input should be 'left-to-right'"),
        (output, "CORPUS is missing"),
        ((corpus,), "give --output FOLDER"),
    ):
        code, out, err = train(*arguments)
        assert code == 2 and out == "" and words in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()
