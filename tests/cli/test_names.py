"""Options have one name, errors use it, and the help says what is required."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from energylm.cli.main import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def energylm(monkeypatch, capsys, tmp_path) -> Callable[..., Done]:
    """Run the program in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments) -> Done:
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return Done(leaving.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("negatives", "m", "c", "-o", "x", "--length", "40", "--prefix-tokens", "60"),
            "--prefix-tokens 60 must",
        ),
        (("perplexity", "m", "c", "--length", "40", "--prefix-tokens", "60"), "--prefix-tokens 60 leaves nothing"),
        (("lm", "train", "c", "-o", "x", "--steps", "0"), "--steps: "),
        (("generate", "m"), "no energy came; give --energy"),
        (("generate", "--energy", "e"), "LM is missing"),
        (("probe", "attack", "e", "m", "c", "--edits", "0"), "--edits: "),
        (("energy", "train", "n", "-o", "x", "--corpus", "c", "--init", "i", "--batch", "0"), "--batch: "),
    ],
)
def test_errors_name_what_was_typed(energylm, arguments, said):
    """`--prefix 60` was answered with `context_lengths (60,)`, a key that its writer had never seen."""
    done = energylm(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"energylm: {said}")
    assert "prefix_tokens" not in done.stderr and "the configuration" not in done.stderr


@pytest.mark.parametrize("typed", ["--prefix-tokens", "--prefix"])
def test_the_old_spelling_is_gone(energylm, typed):
    """Teeth for the test above: another name is no option at all."""
    done = energylm("perplexity", "m", "c", "--length", "40", typed, "60")
    assert ("No such option" in done.stderr) == (typed == "--prefix")


@pytest.mark.parametrize(
    ("verb", "long", "short"),
    [
        (("generate",), "--n", "-n"),
        (("perplexity",), "--n", "-n"),
        (("lm", "sample"), "--n", "-n"),
        (("negatives",), "--k", "-k"),
        (("energy", "train"), "--negatives-per-context", "-k"),
    ],
)
def test_short_options_have_long_names(energylm, verb, long, short):
    shown = energylm(*verb, "--help").stdout
    assert re.search(rf"{long}\b.*\s{short}\b|\s{short}\b.*{long}\b", shown)


SEEDED = (
    ("lm", "sample", "m"),
    ("lm", "train", "c", "-o", "x"),
    ("generate", "m", "--energy", "e"),
    ("perplexity", "m", "c"),
    ("negatives", "m", "c", "-o", "x"),
    ("energy", "train", "n", "--corpus", "c", "--init", "i", "-o", "x"),
    ("pretrain", "mlm", "c", "-o", "x"),
    ("pretrain", "cmlm", "--train", "a", "--train", "b", "--valid", "a", "--valid", "b", "-o", "x"),
    ("detect", "train", "--human", "h", "--machine", "m", "-o", "x"),
    ("finetune", "--task", "cola", "--data", "d", "-o", "x"),
    ("seq2seq", "train", "entities", "--train", "t", "--valid", "v", "-o", "x"),
    ("mcmc", "m"),
    ("probe", "perturb", "e", "m", "c"),
    ("rerank", "m", "f", "--weight", "1"),
    ("study", "new", "-o", "x", "--completions", "a=a", "--completions", "b=b"),
    ("study", "simulate", "s"),
)


@pytest.mark.parametrize("verb", SEEDED, ids=" ".join)
def test_a_negative_seed_is_refused_everywhere(energylm, verb):
    done = energylm(*verb, "--seed", "-5")
    assert done.returncode == 2
    assert "--seed" in done.stderr and "0" in done.stderr
    assert "Traceback" not in done.stderr


def test_set_cites_a_key_that_the_verb_has(energylm):
    """The example of the message is itself a setting that is understood; before, most verbs had no such key."""
    for verb in (
        ("lm", "train", "c", "-o", "x"),
        ("mcmc", "m"),
        ("rerank", "m", "f", "--weight", "1"),
        ("score", "m", "f"),
    ):
        done = energylm(*verb, "--set", "nonsense")
        example = re.search(r"e\.g\. --set (\S+=\S+)\n", done.stderr)
        assert example, done.stderr
        assert "unknown key" not in energylm(*verb, "--set", example[1]).stderr
    wrong = energylm("mcmc", "m", "--set", "optimizer.learning_rate=0.001").stderr
    assert "unknown key 'optimizer'" in wrong  # teeth: the example that all verbs gave


@pytest.mark.parametrize(
    "verb",
    [
        ("lm", "train", "-o", "x"),
        ("negatives", "-o", "x"),
        ("energy", "train", "-o", "x"),
        ("perplexity",),
        ("generate",),
        ("pretrain", "mlm", "-o", "x"),
        ("pretrain", "cmlm", "-o", "x"),
        ("probe", "perturb"),
        ("probe", "differences"),
        ("score",),
        ("evaluate", "blimp"),
        ("finetune", "-o", "x"),
        ("seq2seq", "train", "-o", "x"),
        ("mcmc",),
    ],
    ids=" ".join,
)
def test_what_is_required_is_required_in_the_help(energylm, verb):
    missing = re.findall(r"(\S+) is missing", energylm(*verb).stderr)
    assert missing
    name = [word for word in verb if word not in ("-o", "x")]
    shown = energylm(*name, "--help").stdout
    usage = next(row for row in shown.splitlines() if "Usage:" in row).replace("...", "").split()  # no brackets
    rows = [row for row in re.split(r"\n(?=\W*-)", shown) if "equired" in row]  # a row may take several lines
    for option in missing:
        required = option in usage or any(option.lower() in row.lower() for row in rows)
        assert required, f"{option} is not shown as required:\n{shown}"


def test_paths_with_spaces_are_quoted_in_what_to_type(energylm, tmp_path):
    folder = tmp_path / "my study"
    done = energylm("study", "report", folder)
    assert f"`energylm study new --output '{folder}'`" in done.stderr
