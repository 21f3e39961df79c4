"""`energylm probe …`: tables on stdout, the rest on stderr, mistakes are one line and exit code 2."""

import json
import sys

import pytest

from energylm.cli.main import main
from energylm.jobs.job import Job
from energylm.verbs.joint.negatives import MakeNegatives


@pytest.fixture
def energylm(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", "probe", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def negatives_folder(corpus_folder, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("negatives") / "suffix"
    sizes = {"k": 1, "length": 20, "prefix_tokens": (12,), "contexts": 5}
    config = MakeNegatives(corpus=str(corpus_folder), language_model=str(model_folder), split="valid", **sizes)
    config.run(Job(output=folder))
    return folder


def test_perturb(energylm, model_folder, energy_folder, corpus_folder, tmp_path):
    sizes = ("--length", 8, "--ends", 2, "--texts", 3, "--entity", " a", "--split", "train")
    files = ("--json", tmp_path / "out.json", "--output", tmp_path / "report")
    code, out, err = energylm("perturb", energy_folder, model_folder, corpus_folder, *sizes, *files)
    assert code == 0 and "neighbours swapped" in out and "random tokens" in out and "report.html" in err
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["texts"] == 3 and len(saved["effects"]["swap"]["energy"]["by_position"]) == 7


def test_attack(energylm, model_folder, energy_folder, corpus_folder, negatives_folder, tmp_path):
    options = ("--negatives", negatives_folder, "--corpus", corpus_folder, "--texts", 2, "--edits", 2)
    options += ("--threshold", -1e6, "--only-generated", "--set", "fidelity_pairs=8", "--json", tmp_path / "out.json")
    code, out, _ = energylm("attack", energy_folder, model_folder, *options)
    assert code == 0 and "not flipped" in out and "fidelity random" in out
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["outcome"]["attacked"] == 2 and saved["flipped_by"] == [0.0, 0.0, 0.0]
    assert all(edit["position"] > 12 for text in saved["texts"] for edit in text["edits"])


def test_differences(energylm, energy_folder, corpus_folder, negatives_folder, tmp_path):
    options = ("--corpus", corpus_folder, "--margin", 0, "--margin", 0.2, "--json", tmp_path / "out.json")
    code, out, _ = energylm("differences", energy_folder, negatives_folder, *options)
    assert code == 0 and "> 0.2" in out and "left to right" in out
    margins = json.loads((tmp_path / "out.json").read_text())["generators"]["g1"]["margins"]
    assert [share["margin"] for share in margins] == [0.0, 0.2]


def test_dry_runs_say_what_would_be_done(
    energylm, model_folder, energy_folder, corpus_folder, negatives_folder, tmp_path
):
    code, out, _ = energylm(
        "perturb", energy_folder, model_folder, corpus_folder, "--length", 8, "--ends", 2, "--dry-run"
    )
    assert code == 0 and out.startswith("would change 100 texts of 8 tokens")
    code, out, _ = energylm("attack", energy_folder, model_folder, corpus_folder, "--towards", "fake", "--dry-run")
    assert code == 0 and out.startswith("would replace at most 5 tokens") and "towards fake" in out
    code, out, _ = energylm("differences", energy_folder, negatives_folder, "--corpus", corpus_folder, "--dry-run")
    assert code == 0 and out.startswith("would compare")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("perturb", "{energy}", "{model}"), "FILE|CORPUS is missing"),
        (("perturb", "{energy}", "{model}", "{corpus}", "--length", "8"), "leave no middle of 8"),
        (("perturb", "{energy}", "{model}", "nothing.txt"), "nothing.txt does not exist"),
        (("perturb", "{model}", "{model}", "{corpus}", "--length", "8", "--ends", "2"), "holds no trained energy"),
        (
            ("perturb", "{energy}", "{model}", "{corpus}", "--length", "8", "--ends", "2", "--entity", " Johannisburg"),
            "one must go in the place of one",
        ),
        (("attack", "{energy}", "{model}"), "either a source"),
        (("attack", "{energy}", "{model}", "nothing.txt"), "nothing.txt does not exist"),
        (("attack", "{energy}", "{model}", "--negatives", "{negatives}"), "come together"),
        (("attack", "{energy}", "{model}", "{corpus}", "--towards", "machine"), "'real' or 'fake'"),
        (("attack", "{energy}", "{model}", "{corpus}", "--perplexity-budget", "1"), "greater than 1"),
        (("attack", "{energy}", "no/such/model", "{corpus}"), "does not exist"),
        (("differences", "{energy}", "--corpus", "{corpus}"), "NEGATIVES is missing"),
        (("differences", "{energy}", "{corpus}", "--corpus", "{corpus}"), "negatives"),
        (("differences", "{energy}", "{negatives}", "--corpus", "{corpus}", "--per-context", "9"), "holds 1 texts"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    energylm, model_folder, energy_folder, corpus_folder, negatives_folder, arguments, words
):
    places = {
        "model": model_folder,
        "energy": energy_folder,
        "corpus": corpus_folder,
        "negatives": negatives_folder,
    }
    code, out, err = energylm(*(argument.format(**places) for argument in arguments))
    assert code == 2 and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("energylm: ")
