"""`energylm study new | simulate | report | export`: what they print; mistakes are one line and exit code 2."""

import json
import sys

import pytest

from energylm.cli import main as program


@pytest.fixture
def files(tmp_path, monkeypatch):
    """40 prefixes completed by base and joint, with their real endings."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "joint", "real"):
        lines = [{"prefix": f"Prefix {n} goes", "completion": f" {name} ends {n} so."} for n in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def study(monkeypatch, capsys):
    """Call `energylm study …`; its exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["energylm", "study", *arguments])
        with pytest.raises(SystemExit) as leaving:
            program.main()
        told = capsys.readouterr()
        return leaving.value.code or 0, told.out, told.err

    return call


NEW = (
    "new",
    "-o",
    "s",
    "--completions",
    "base=base.jsonl",
    "--completions",
    "joint=joint.jsonl",
    "--real",
    "real.jsonl",
)
SMALL = ("--pairs", "20", "--max-pairs-per-rater", "9", "--qualification", "6")


def test_new_simulate_report_export(files, study):
    code, out, _ = study(*NEW, *SMALL, "--dry-run")
    assert code == 0 and "would make a study of 1 comparison from 40 prefixes" in out and not (files / "s").exists()
    code, out, _ = study(*NEW, *SMALL, "--json", "new.json")
    assert code == 0 and "a coin-tosser passes in 34.4% of cases" in out
    assert json.loads((files / "new.json").read_text())["votes_wanted"] == 60
    code, out, _ = study("simulate", "s", "--dry-run")
    assert code == 0 and "dropped by 3 checks" in out and not (files / "s" / "study.sqlite").exists()
    code, out, err = study("simulate", "s", "--good", "8", "--random", "2", "--lazy", "1", "--strength", "joint=2")
    assert code == 0 and "| good | 8 |" in out and "simulated" not in err
    code, out, err = study("report", "s", "-o", "out", "--json", "outcome.json")
    assert code == 0 and out.startswith("| model 1 (baseline) |") and "report: " in err
    assert (files / "out" / "report.html").exists()
    assert json.loads((files / "outcome.json").read_text())["outcome"]["votes"]["given"] == 60
    code, out, _ = study("export", "s")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and sum(answer["kind"] == "pair" for answer in answers) == 60
    assert {"rater", "item", "left", "right", "choice", "preferred", "position", "seconds"} <= set(answers[0])
    assert "token" not in out
    code, out, _ = study("export", "s", "-o", "answers.jsonl")
    assert code == 0 and out == "" and len((files / "answers.jsonl").read_text().splitlines()) == len(answers)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*NEW[:5], "--real", "real.jsonl"), "two models or more"),
        (("new", "-o", "s", "--completions", "base.jsonl"), "not of the form NAME=FILE"),
        (NEW, "prefixes with a real ending are needed"),
        ((*NEW, *SMALL, "--compare", "base"), "not of the form BASELINE:MODEL"),
        ((*NEW, *SMALL, "--compare", "base:jiont"), "names 'jiont'"),
        ((*NEW, *SMALL, "--candidates", "9"), "--candidates goes with models"),
        ((*NEW, *SMALL, "--set", "design.tise=true"), "did you mean 'design.ties'"),
        ((*NEW, *SMALL, "--raters-per-pair", "0"), "--raters-per-pair"),
        ((*NEW[:1], *NEW[3:], *SMALL), "--output FOLDER"),
        (("new", "-o", "s", "--completions", "a=no.jsonl", "--completions", "b=no.jsonl"), "no.jsonl does not exist"),
        (("new", "-o", "s", "--model", "a=x", "--model", "b=y"), "prefixes of a source"),
        (("new", "-o", ".", *NEW[3:], *SMALL), "never written over"),
        (("report", "no"), "holds no study.json"),
        (("export", "no"), "holds no study.json"),
        (("simulate", "no"), "holds no study.json"),
        (("simulate", "no", "--strength", "joint=much"), "a strength is a number"),
        (("simulate", "no", "--good", "0", "--random", "0", "--lazy", "0"), "a panel of no raters"),
    ],
)
def test_mistakes_are_one_line(files, study, arguments, said):
    code, out, err = study(*arguments)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1


def test_a_study_without_answers_is_said(files, study):
    study(*NEW, *SMALL)
    code, _, err = study("report", "s")
    assert code == 2 and "no answers yet" in err
    code, _, err = study(*NEW, *SMALL)
    assert code == 2 and "never written over" in err


def test_a_missing_extra_is_said(files, study, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    code, _, err = study("report", "s")
    assert code == 2 and "pip install 'energylm[web]'" in err and err.count("\n") == 1


def test_help_shows_how_structured_options_are_typed(files, study):
    """Fields of more than plain values are options, too, with the form in which they are typed."""
    code, out, _ = study("new", "--help")
    assert code == 0
    for typed in ("--completions NAME=FILE", "--model NAME=LM[,ENERGY]", "--compare BASELINE:MODEL"):
        assert typed in out
    assert "--design" not in out  # a config without a form stays behind --set
    assert "--strength MODEL=NUMBER" in study("simulate", "--help")[1]
