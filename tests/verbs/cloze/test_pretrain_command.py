"""`energylm pretrain` as a person types it."""

import json

import pytest
from click.testing import CliRunner

from energylm.cli.main import program
from energylm.errors import ConfigError

SMALL = ("--window", 16, "--steps", 4, "--set", "network.width=16", "--set", "training.global_batch=2")


def invoke(*arguments):
    return pretrain("mlm", *arguments)


def pretrain(family, *arguments):
    words = ["pretrain", family, *map(str, arguments)]
    return CliRunner().invoke(program(), words, catch_exceptions=False, standalone_mode=False)


def test_train_then_nothing_to_do(corpus_folder, tmp_path):
    report = tmp_path / "result.json"
    first = invoke(corpus_folder, "--output", tmp_path / "run", *SMALL, "--json", report)
    assert first.exit_code == 0
    assert str(tmp_path / "run" / "model") in first.stdout and "nats per masked token" in first.stdout
    assert len(first.stdout.splitlines()) == 1
    written = json.loads(report.read_text())
    assert written["steps"] == 4 and 0 <= written["validation"]["accuracy"] <= 1 and not written["was_finished"]
    second = invoke(corpus_folder, "--output", tmp_path / "run", *SMALL)
    assert second.exit_code == 0 and "nothing to do" in second.stderr and second.stdout == first.stdout


def test_config_file_flags_and_settings_in_a_dry_run(corpus_folder, tmp_path):
    """The file is below flags, flags below --set; nothing is written."""
    file = tmp_path / "mlm.yaml"
    file.write_text(f"corpus: {corpus_folder}\nwindow: 12\npreset: bit-mini\ntraining:\n  steps: 9\n")
    options = ("--preset", "bit-tiny", "--steps", 8, "--set", "training.steps=7", "--set", "masking.rate=0.2")
    done = invoke("--config", file, "--output", tmp_path / "run", *options, "--dry-run")
    assert done.exit_code == 0 and not (tmp_path / "run").exists()
    for part in ("would train: masked-lm bit-tiny", "7 steps of 32 windows of 12 tokens", "20% masked"):
        assert part in done.stdout


def test_mistakes_are_one_line(corpus_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'masking\.rate'"):
        invoke(corpus_folder, "--output", tmp_path / "run", "--set", "masking.rat=1")
    with pytest.raises(ConfigError, match="CORPUS is missing"):
        invoke("--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_family_has_a_name_of_its_own():
    """Others join it: `energylm pretrain` alone must not mean mlm."""
    shown = CliRunner().invoke(program(), ["pretrain", "--help"])
    assert shown.exit_code == 0 and "mlm" in shown.stdout


FAMILIES = ("electric", "electra", "electra-tt", "two-tower")


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_trains_and_says_what_it_cost(corpus_folder, tmp_path, family):
    report = tmp_path / "result.json"
    small = ("--window", 16, "--steps", 2, "--set", "network.width=16", "--set", "training.global_batch=2")
    done = pretrain(family, corpus_folder, "--output", tmp_path / "run", *small, "--json", report)
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 1
    assert str(tmp_path / "run" / "model") in done.stdout and "FLOPs" in done.stdout
    written = json.loads(report.read_text())
    assert (written["family"], written["steps"]) == (family, 2) and written["compute"] > 0
    assert json.loads((tmp_path / "run" / "model" / "energylm.json").read_text())["kind"] == family


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dry_run_turns_a_budget_into_steps_and_writes_nothing(corpus_folder, tmp_path, family):
    done = pretrain(family, corpus_folder, "-o", tmp_path / "run", "--window", 16, "--compute", "1e13", "--dry-run")
    assert done.exit_code == 0 and not (tmp_path / "run").exists()
    assert f"would train: {family} bit-local-tiny" in done.stdout and "1e+13 in all" in done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_mistakes_of_the_siblings_are_one_line(corpus_folder, tmp_path, family):
    with pytest.raises(ConfigError, match="--steps 5 and --compute 1e\\+12 came together"):
        pretrain(family, corpus_folder, "-o", tmp_path / "run", "--steps", 5, "--compute", 1e12)
    with pytest.raises(ConfigError, match=r"did you mean 'compute'"):
        pretrain(family, corpus_folder, "-o", tmp_path / "run", "--set", "computer=1")
    assert not (tmp_path / "run").exists()


def test_the_command_decides_electras_noise(corpus_folder, tmp_path):
    """A file that says otherwise is refused, with the name of the command that is meant."""
    file = tmp_path / "electra.yaml"
    file.write_text("noise: masked-lm\n")
    with pytest.raises(ConfigError, match="makes an ELECTRA: `energylm pretrain electra`"):
        pretrain("electra-tt", corpus_folder, "-o", tmp_path / "run", "--config", file, "--dry-run")
