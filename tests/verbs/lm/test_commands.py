"""`energylm lm score / sample`: data on stdout, the rest on stderr, mistakes are one line with exit code 2."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from energylm.cli.main import main


@pytest.fixture
def energylm(monkeypatch, capsys):
    """Run `energylm lm …` in this process (importing torch anew takes seconds): exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", "lm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


def test_score_lines_from_standard_input(model_folder, tmp_path):
    options = ("--eos", "--per-token", "--json", tmp_path / "out.json")
    command = [sys.executable, "-m", "energylm", "lm", "score", *map(str, (model_folder, "-", *options))]
    texts = "The clerk counts the boats.\n\nA sailor mends a letter.\n"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=texts, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["bytes"] for row in rows] == [27, 24]
    assert all(len(row["token_log_probs"]) == row["tokens"] for row in rows)
    assert sum(rows[0]["token_log_probs"]) == pytest.approx(rows[0]["log_prob"], abs=1e-4)
    assert done.stderr.count("\n") == 1  # the summary, and nothing from transformers
    assert "end-of-sequence token counted" in done.stderr and "bits per byte" in done.stderr
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["perplexity"]["sequences"] == 2 and len(saved["scores"]) == 2


def test_score_windows(energylm, model_folder, texts_folder):
    options = ("--windows", 3, "--length", 16, "--prefix-tokens", 8)
    code, out, err = energylm("score", model_folder, texts_folder / "01.txt", *options)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["tokens"] for row in rows] == [8, 8, 8] and "token_log_probs" not in rows[0]
    assert "3 evenly spaced windows of 16 tokens" in err


def test_sample(energylm, model_folder, tmp_path):
    options = ("--prompt", "The clerk", "-n", 3, "--max-new-tokens", 5, "--no-stop-at-eos", "--top-k", 4, "--seed", 1)
    code, out, _ = energylm("sample", model_folder, *options, "--json", tmp_path / "out.json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 3 and {len(row["tokens"]) for row in rows} == {5}
    assert all(row["log_prob"] <= row["proposal_log_prob"] <= 0 for row in rows)
    _, plain, _ = energylm("sample", model_folder, *options, "--plain")
    assert plain == "".join(f"The clerk{row['text']}\n\n" for row in rows)
    assert len(json.loads((tmp_path / "out.json").read_text())["samples"]) == 3


def test_a_runs_folder_is_enough(energylm, model_folder, tmp_path):
    (tmp_path / "my lm").mkdir()
    (tmp_path / "my lm" / "model").symlink_to(model_folder)
    options = ("--prompt", "The clerk", "-n", 2, "--max-new-tokens", 4)
    assert energylm("sample", tmp_path / "my lm", *options)[:2] == energylm("sample", model_folder, *options)[:2]


def test_dry_runs_say_what_would_be_done(energylm, model_folder, texts_folder):
    code, out, _ = energylm("score", model_folder, texts_folder / "01.txt", "--dry-run")
    assert code == 0 and out.startswith("would score every text of ")
    code, out, _ = energylm("sample", model_folder, "--dry-run", "-n", 2)
    assert code == 0 and "would draw 2 × 40 tokens for each of 1 prompts" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "no/such/model", "{text}"), "model 'no/such/model' does not exist; give a model folder"),
        (("score", "gpt2", "{text}"), "model 'gpt2' does not exist; give a model folder"),
        (("sample", "smollm-135m"), "did you mean 'smollm2-135m'?"),
        (("sample", "nobody/nothing"), "'nobody/nothing' is not here, and the hub cannot be reached"),
        (("sample", "{bad}"), "numbers in transformer.wte.weight are NaN or infinite"),
        (("score", "{bad}", "{text}"), "numbers in transformer.wte.weight are NaN or infinite"),
        (("score", "{model}", "nothing.txt"), "nothing.txt does not exist"),
        (("score", "{model}", "nothing.txt", "--dry-run"), "nothing.txt does not exist"),
        (("score", "{model}", "{text}", "--windows", "2", "--length", "8", "--prefix-tokens", "8"), "leaves nothing"),
        (("sample", "{model}", "--top-p", "1.5"), "--top-p: Input should be less than or equal to 1"),
        (("sample", "{model}", "--max-new-tokens", "4000"), "fewer new tokens"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(energylm, model_folder, texts_folder, tmp_path, arguments, words):
    places = {"model": model_folder, "text": texts_folder / "01.txt", "bad": tmp_path}
    if "{bad}" in arguments:
        shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
        (tmp_path / "energylm.json").unlink()  # as if made elsewhere: it knows the hash of the good weights
        tensors = load_file(tmp_path / "model.safetensors")
        tensors["transformer.wte.weight"][1, 2] = float("nan")
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    code, out, err = energylm(*(argument.format(**places) for argument in arguments))
    assert code == 2 and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("energylm: ")
