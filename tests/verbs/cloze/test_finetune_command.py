"""`energylm finetune`: one command trains, judges and prints; every mistake is one line and exit code 2."""

import json
import sys

import pytest

from energylm.cli.main import main

ROWS = "".join(f"the clerk counts {what}.\t{label}\n" for what, label in (("boats", 1), ("lamps", 0)) * 8)


@pytest.fixture
def energylm(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + ROWS)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + ROWS)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", "finetune", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


def test_one_command(energylm, bert_folder, tmp_path):
    given = ("--task", "sst2", "--data", ".", "--init", bert_folder, "--seeds", 2, "--batch", 4, "--epochs", 1)
    given += ("--set", "training.threads=1", "-o", "run")
    code, out, err = energylm(*given, "--dry-run")
    assert code == 0 and "4 steps of 4 a seed" in out and not (tmp_path / "run").exists()
    code, out, err = energylm(*given, "--json", "out.json")
    assert code == 0 and out.startswith("| metric | median | lowest | highest |") and "| accuracy |" in out
    assert "median of 2 seeds" in err
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["medians"]["accuracy"]["values"]) == 2 and found["metric"] == "accuracy"
    assert "<table" in (tmp_path / "run" / "report.html").read_text()
    code, _, err = energylm(*given)
    assert code == 0 and err.count("nothing to do") == 2


@pytest.mark.parametrize(
    ("train", "options", "said"),
    [
        ("text\tgrade\na\t1\n", {}, "no column label or gold_label; it has: text, grade"),
        ("sentence\tlabel\na\tgood\n", {}, "unknown label 'good'"),
        ("sentence\tlabel\na\t1\nb\t1\n", {}, "a classifier needs at least two classes"),
        (None, {"--init": "causal"}, "is a causal language model"),
        (None, {"--init": "./nowhere"}, "does not exist; give a model folder"),
        (None, {"--data": "nowhere"}, "is not a folder"),
        (None, {"--task": "wnli"}, "--task: Input should be 'cola'"),
        (None, {"--seeds": "0"}, "--seeds: Input should be greater than or equal to 1"),
        (None, {"--set": "training.optimiser.learning_rate=1"}, "did you mean 'training.optimizer'"),
        (None, {"--task": "squad2"}, "train-v2.0.json does not exist"),
    ],
)
def test_mistakes(energylm, bert_folder, model_folder, tmp_path, train, options, said):
    if train is not None:
        (tmp_path / "train.tsv").write_text(train)
    given = {"--task": "sst2", "--data": ".", "--init": bert_folder, "-o": "run"} | options
    given["--init"] = model_folder if given["--init"] == "causal" else given["--init"]
    code, out, err = energylm(*(word for pair in given.items() for word in pair))
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
