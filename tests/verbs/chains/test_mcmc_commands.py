"""`energylm mcmc`: texts on stdout, the rest on stderr; every mistake is one line and exit code 2."""

import json
import sys
from pathlib import Path

import pytest
import torch

from energylm.cli.main import main


@pytest.fixture
def energylm(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


SHORT = ("--epochs", 3, "--burn-in", 1, "--chains", 2)


def test_texts_go_to_stdout_and_the_verdict_to_stderr(energylm, masked_folder, tmp_path):
    (tmp_path / "texts.txt").write_text("The clerk [MASK] the boats.\n\nA sailor\n", encoding="utf-8")
    files = ("--input", tmp_path / "texts.txt", "--json", tmp_path / "out.json", "-o", tmp_path / "run")
    code, out, err = energylm("mcmc", masked_folder, *SHORT, *files, "--energy", "raw", "--block", 2)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(lines) == 2 * 2 * 2
    assert set(lines[0]) == {"text", "chain", "epoch", "energy", "sample", "tokens", "score"}
    assert "of the proposals accepted" in err and "report.html" in err
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["samples"] == lines and saved["diagnosis"]["verdict"] in err


def test_dry_run_says_what_would_be_done(energylm, masked_folder):
    code, out, _ = energylm("mcmc", masked_folder, "--length", 4, "--require", "boats", "--dry-run")
    assert code == 0 and out.startswith("would run 5 chains of 33 epochs") and "2:bo 3:ats" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--length", 200), "text 1 has 200 tokens but the model holds 96"),
        (("--length", 3, "--block", 4), "block 4 is larger than the 3 free positions"),
        (("--temperature", 0), "mask-predict"),
        (("--init", "A sailor", "--require", "boats"), "cannot reach the required 'boats'"),
        (("--require", "boats", "--forbid", "boats"), "required and forbidden at once"),
        (("--init", "A sailor mends", "--forbid", "sailor"), "contains the forbidden 'sailor' from the start"),
        (("--init", "A sailor", "--fixed", "unmasked"), "no free position"),
        (("--init", "A sailor", "--fixed", "0-77"), "does not fit a text of"),
        (("--init", "A [MASK]", "--fixed", "first"), "neither a position nor a range"),
        (("--length", 4, "--fixed", "0"), "position 0 is fixed but holds [MASK]"),
        (("--init", "A sailor mends", "--init", ""), "an empty text came"),
        (("--epochs", 3, "--burn-in", 3), "burn-in 3 leaves nothing"),
        (("--forced-epochs", 9), "raise --burn-in"),
        (("--sampler", "hmc"), "--sampler"),
        (("--sampler", "mask-predict", "--require", "boats"), "mask-predict knows no required words"),
        (("--set", "blok=2"), "did you mean 'block'"),
    ],
)
def test_mistakes_are_one_line(energylm, masked_folder, arguments, words):
    code, out, err = energylm("mcmc", masked_folder, *arguments)
    assert code == 2 and out == "" and words in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err


def test_models_that_are_not_masked_are_refused(energylm, model_folder, masked_folder, tmp_path):
    code, _, err = energylm("mcmc", model_folder)
    assert code == 2 and "no masked language model" in err
    maskless = tmp_path / "maskless"
    _copy_without_mask(masked_folder, maskless)
    code, _, err = energylm("mcmc", maskless)
    assert code == 2 and "no mask token" in err
    code, _, err = energylm("mcmc")
    assert code == 2 and "MODEL is missing" in err


def test_a_token_that_no_chain_can_propose_is_refused(energylm, tmp_path):
    from tests.bundles.test_masked_language_model import saved, small_bert, word_tokenizer

    folder = saved(tmp_path / "bert", small_bert(), word_tokenizer(framed=True))
    code, _, err = energylm("mcmc", folder, "--init", "the xyzzy mends")
    assert code == 2 and "'[UNK]' at position 1" in err
    code, out, _ = energylm("mcmc", folder, "--init", "the xyzzy mends", "--fixed", "1", *SHORT)
    assert code == 0 and len(out.splitlines()) == 4


def test_translations_are_drawn_and_judged(energylm, translator_folder, parallel_folder, tmp_path):
    files = ("--source-file", parallel_folder / "test.de", "--reference-file", parallel_folder / "test.en")
    predict = ("--sampler", "mask-predict", "--length-beam", 3, "--json", tmp_path / "out.json")
    code, out, err = energylm("mcmc", translator_folder, *files, *predict)
    assert code == 0 and len(out.splitlines()) == 24 and "BLEU" in err
    assert len(json.loads((tmp_path / "out.json").read_text())["by_epoch"]["bleu"]) == 1
    code, out, _ = energylm("mcmc", translator_folder, "--source", "a rolias", *SHORT, "--keep", "last")
    assert code == 0 and [json.loads(line)["chain"] for line in out.splitlines()] == [0, 1]
    code, out, _ = energylm("mcmc", translator_folder, "--source", "a rolias", "--length", 4, "--dry-run")
    assert code == 0 and "4 free positions" in out


def test_mistakes_with_sources_are_one_line(energylm, translator_folder, masked_folder, model_folder, tmp_path):
    (tmp_path / "two.de").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "one.en").write_text("a\n", encoding="utf-8")
    (tmp_path / "gap.de").write_text("a\n\n", encoding="utf-8")
    (tmp_path / "two.en").write_text("a\nb\n", encoding="utf-8")
    files = ("--source-file", tmp_path / "two.de", "--reference-file", tmp_path / "one.en")
    for model, arguments, words in (
        (translator_folder, (), "reads a source: give --source"),
        (translator_folder, files, "one.en ends after 1 lines"),
        (
            translator_folder,
            ("--source-file", tmp_path / "gap.de", *files[2:3], tmp_path / "two.en"),
            "source 2 is empty",
        ),
        (translator_folder, ("--source", "a", "--reference-file", tmp_path / "one.en"), "goes with --source-file"),
        (translator_folder, ("--source", "krelc " * 40), "tokens but the model holds 32"),
        (translator_folder, ("--source", "a", "--length", 2, "--block", 3), "block 3 is larger than the 2 free"),
        (translator_folder, ("--source", "a", "--length-beam", 2), "--length-beam is for mask-predict"),
        (masked_folder, ("--source", "a"), "reads no source"),
        (model_folder, ("--source", "a"), "'language-model', which reads no source"),
    ):
        code, out, err = energylm("mcmc", model, *arguments)
        assert code == 2 and out == "" and words in err
        assert len(err.splitlines()) == 1 and "Traceback" not in err


def _copy_without_mask(source: Path, target: Path) -> None:
    from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

    AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32).save_pretrained(target)
    backend = PreTrainedTokenizerFast.from_pretrained(source).backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>").save_pretrained(target)
