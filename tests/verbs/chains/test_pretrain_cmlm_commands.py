"""`energylm pretrain cmlm` as a person types it."""

import json

import pytest
from click.testing import CliRunner

from energylm.cli.main import program
from energylm.errors import ConfigError, DataError

SMALL = (
    *("--set", "network={width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1}", "--set", "vocabulary_size=400"),
    *("--steps", 2, "--set", "training.global_batch=4", "--set", "valid_limit=3", "--set", "iterations=1"),
)


def invoke(*arguments):
    return CliRunner().invoke(program(), ["pretrain", "cmlm", *map(str, arguments)], catch_exceptions=False)


def files(folder):
    return [
        argument
        for option, name in (("--train", "train"), ("--valid", "val"))
        for end in ("de", "en")
        for argument in (option, folder / f"{name}.{end}")
    ]


def test_train_then_nothing_to_do(parallel_folder, tmp_path):
    report = tmp_path / "result.json"
    first = invoke(*files(parallel_folder), "-o", tmp_path / "run", *SMALL, "--json", report)
    assert first.exit_code == 0 and len(first.stdout.splitlines()) == 1
    assert str(tmp_path / "run" / "model") in first.stdout and "BLEU" in first.stdout
    assert json.loads(report.read_text())["steps"] == 2
    second = invoke(*files(parallel_folder), "-o", tmp_path / "run", *SMALL)
    assert second.exit_code == 0 and "nothing to do" in second.stderr and second.stdout == first.stdout


def test_a_dry_run_writes_nothing_and_mistakes_are_one_line(parallel_folder, tmp_path):
    done = invoke(*files(parallel_folder), "-o", tmp_path / "run", *SMALL, "--dry-run")
    assert done.exit_code == 0 and "would train: cmlm of 1 + 1 layers" in done.stdout
    with pytest.raises(ConfigError, match="train came with 1 files"):
        invoke(*files(parallel_folder)[2:], "-o", tmp_path / "run", "--dry-run")
    with pytest.raises(ConfigError, match="did you mean 'vocabulary_size'"):
        invoke(*files(parallel_folder), "-o", tmp_path / "run", "--set", "vocabulary_sise=400")
    (tmp_path / "short").write_text("a\n", encoding="utf-8")
    unequal = ["--train", parallel_folder / "train.de", "--train", tmp_path / "short", *files(parallel_folder)[4:]]
    with pytest.raises(DataError, match="ends after 1 lines"):
        invoke(*unequal, "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()
