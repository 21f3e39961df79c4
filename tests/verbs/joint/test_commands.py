"""The commands of joint models as a person types them: data on stdout, the rest on stderr, mistakes are one line."""

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
    options = ("--prompt", "The clerk", "-n", 6, "--max-new-tokens", 3, "--no-stop-at-eos", "--top-k", 5)
    files = ("--json", tmp_path / "out.json")
    code, out, err = energylm(
        "generate", model_folder, "--energy", energy_folder, *options, "--draws", 2, "--weights", "corrected", *files
    )
    saved = json.loads((tmp_path / "out.json").read_text())["results"][0]["result"]
    assert code == 0 and out == "".join(f"The clerk{text}\n" for text in saved["texts"]) + "\n"
    assert "6 candidates worth" in err and "largest weight" in err and "kept: " in err
    assert len(saved["texts"]) == 2 and len(saved["pools"][0]["tokens"]) == 6


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
        (("generate", "{model}"), "no energy came; give --energy"),
        (("negatives", "{model}", "{corpus}", "-o", "x", "--length", "24"), "shorten the context"),
        (("negatives", "{model}", "-o", "x"), "CORPUS is missing"),
        (("negatives", "{model}", "{corpus}"), "give --output FOLDER"),
        (("energy", "train", "n", "--corpus", "c", "--init", "tiny", "--kind", "both", "-o", "x"), "--kind: "),
        (("energy", "train", "n", "--corpus", "c", "--init", "tiny", "--preset", "deng", "-o", "x"), "unknown preset"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(energylm, model_folder, energy_folder, corpus_folder, arguments, words):
    places = {"model": model_folder, "energy": energy_folder, "corpus": corpus_folder}
    code, out, err = energylm(*(argument.format(**places) for argument in arguments))
    assert code == 2 and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("energylm: ")


def test_from_a_corpus_to_an_energy(energylm, corpus_folder, model_folder, tmp_path):
    made = ("negatives", model_folder, corpus_folder, "-o", tmp_path / "n", "-k", 2, "--length", 24)
    made += ("--prefix-tokens", 12, "--prefix-tokens", 16, "--contexts", 60, "--seed", 3)
    code, out, _ = energylm(*made, "--dry-run")
    assert code == 0 and not (tmp_path / "n").exists()
    assert "would generate 2 continuations of 60 contexts of 12 or 16 tokens up to 24" in out
    code, out, _ = energylm(*made, "--json", tmp_path / "n.json")
    assert code == 0 and "60 contexts × 2 continuations" in out and "tokens/s" in out
    assert json.loads((tmp_path / "n.json").read_text())["contexts"] == 60
    assert "nothing to do" in energylm(*made)[2]

    small = ("--set", "network.width=16", "--set", "network.layers=1", "--set", "validation_fraction=0.4", "--batch", 4)
    train = ("energy", "train", tmp_path / "n", "--corpus", corpus_folder, "--init", "bit-tiny", *small)
    train += ("--output", tmp_path / "run", "--steps", 3, "--learning-rate", "1e-3", "--language-model", model_folder)
    code, out, _ = energylm(*train, "--kind", "bit", "--dry-run")
    assert code == 0 and "bit energy from bit-tiny" in out and not (tmp_path / "run").exists()
    code, done, _ = energylm(*train, "--json", tmp_path / "run.json")
    assert code == 0 and "accuracy" in done and "before calibration" in done and len(done.splitlines()) == 1
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["steps"] == 3 and written["scale"] > 0 and not written["was_finished"]
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "model" / "energylm.json").exists()
    code, out, err = energylm(*train)
    assert code == 0 and "nothing to do" in err and out == done


def test_a_union_by_another_loss(energylm, corpus_folder, model_folder, tmp_path):
    """Two folders, a corpus each, validation of its own; what was chosen is said."""
    for name, split, seed in (("a", "train", 1), ("b", "train", 2), ("v", "valid", 1)):
        made = ("negatives", model_folder, corpus_folder, "-o", tmp_path / name, "-k", 2, "--length", 24)
        assert energylm(*made, "--prefix-tokens", 12, "--contexts", 20, "--split", split, "--seed", seed)[0] == 0
    train = ("energy", "train", tmp_path / "a", tmp_path / "b", "--corpus", corpus_folder, "--corpus", corpus_folder)
    train += ("--init", "bilstm-tiny", "--set", "network.width=8", "--objective", "ranking", "--margin", 0.25, "-k", 2)
    train += ("--validation", tmp_path / "v", "--steps", 3, "--batch", 4, "--output", tmp_path / "run")
    _, out, _ = energylm(*train, "--dry-run")
    assert "bilstm energy from bilstm-tiny" in out and "40 contexts of 2 sources" in out
    assert "ranking with margin 0.25, 3 steps (0.3 epochs) of 4 contexts with 2 negatives each" in out
    code, out, _ = energylm(*train)
    assert code == 0 and "P@1" in out and (tmp_path / "run/model/energylm.json").exists()
    code, _, err = energylm(*train, "--kind", "linear")
    assert code == 2 and "is of kind 'bilstm', not 'linear'; take one of: linear" in err
