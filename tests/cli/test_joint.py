"""`energylm perplexity` and `energylm generate`: data on stdout, the rest on stderr, mistakes are one line, exit 2."""

import json
import sys

import pytest

from energylm.cli.main import main


@pytest.fixture
def energylm(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


def test_perplexity(energylm, model_folder, energy_folder, corpus_folder, tmp_path):
    sizes = ("--length", 16, "--prefix-tokens", 12, "--contexts", 3, "-n", 20, "--by-samples", "--split", "valid")
    files = ("--json", tmp_path / "out.json", "--output", tmp_path / "report")
    code, out, err = energylm("perplexity", model_folder, corpus_folder, "--energy", energy_folder, *sizes, *files)
    assert code == 0
    assert [line.split(" | ")[0] for line in out.splitlines()[2:5]] == [
        "| base LM",
        "| joint model",
        "| joint sampler, certified",
    ]
    assert "20 untruncated samples a context" in out and "base " in err and "report.html" in err
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["joint"]["n"] == 20 and [at["n"] for at in saved["by_samples"]] == [2, 5, 10, 20]


def test_generate(energylm, model_folder, energy_folder, tmp_path):
    options = ("--prompt", "The clerk", "-n", 6, "--max-new-tokens", 3, "--fixed-length", "--top-k", 5)
    files = ("--json", tmp_path / "out.json")
    code, out, err = energylm(
        "generate", model_folder, "--energy", energy_folder, *options, "--draws", 2, "--weights", "corrected", *files
    )
    saved = json.loads((tmp_path / "out.json").read_text())["results"][0]
    assert code == 0 and out == "".join(f"The clerk{text}\n" for text in saved["texts"]) + "\n"
    assert "6 candidates worth" in err and "largest weight" in err and "kept: " in err
    assert len(saved["texts"]) == 2 and len(saved["chunks"][0]["candidates"]) == 6


def test_dry_runs_say_what_would_be_done(energylm, model_folder, energy_folder, corpus_folder):
    code, out, _ = energylm(
        "perplexity",
        model_folder,
        corpus_folder,
        "--energy",
        energy_folder,
        "--length",
        16,
        "--prefix-tokens",
        4,
        "--dry-run",
    )
    assert code == 0 and out.startswith("would measure ")
    code, out, _ = energylm("generate", model_folder, "--energy", energy_folder, "--dry-run")
    assert code == 0 and out.startswith("would draw 256 candidates of 40 tokens")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("perplexity", "{model}", "{corpus}", "--energy", "{energy}", "--top-k", "10"),
            "--top-k 10: perplexity needs",
        ),
        (("perplexity", "{model}", "{corpus}", "--temperature", "0.7"), "not log Z; leave the option out"),
        (("perplexity", "{model}", "{corpus}", "--energy", "{energy}", "-n", "1"), "greater than or equal to 2"),
        (("perplexity", "{model}", "{corpus}", "--prefix-tokens", "160"), "leaves nothing of length 160"),
        (("perplexity", "{model}", "nothing.txt"), "nothing.txt does not exist"),
        (("perplexity", "{model}"), "FILE|CORPUS is missing"),
        (
            ("perplexity", "{model}", "{corpus}", "--energy", "{model}", "--length", "16", "--prefix-tokens", "8"),
            "no energy",
        ),
        (("generate", "{model}", "--energy", "{energy}", "-n", "1"), "greater than or equal to 2"),
        (("generate", "{model}", "--energy", "{energy}", "--weights", "best"), "'paper' or 'corrected'"),
        (("generate", "{model}", "--energy", "{energy}", "--max-new-tokens", "900"), "the model holds 128"),
        (("generate", "{model}"), "--energy is missing"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(energylm, model_folder, energy_folder, corpus_folder, arguments, words):
    places = {"model": model_folder, "energy": energy_folder, "corpus": corpus_folder}
    code, out, err = energylm(*(argument.format(**places) for argument in arguments))
    assert code == 2 and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("energylm: ")
