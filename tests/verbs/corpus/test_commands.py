"""`energylm corpus`: data on stdout, one line and exit code 2 for every mistake in the input."""

import json
import sys

import pytest

from energylm.cli.main import main


@pytest.fixture
def energylm(monkeypatch, capsys):
    """Run the program in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        captured = capsys.readouterr()
        return leaving.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.jsonl"
    path.write_text("".join(f'{{"body": "text number {n}"}}\n' for n in range(60)), encoding="utf-8")
    return path


def test_build_info_and_a_second_build(energylm, source, tmp_path):
    output = tmp_path / "corpus"
    command = ["corpus", "build", source, "--field", "body", "--output", output, "--vocabulary-size", "280"]
    command += ["--set", "valid_fraction=0.3", "--licence", "CC0", "--json", tmp_path / "build.json"]
    code, out, _ = energylm(*command)
    assert code == 0 and "train" in out and "CC0" in out
    code, out, err = energylm(*command)
    assert code == 0 and "up to date" in err
    code, out, _ = energylm("corpus", "info", output, "--samples", "2", "--verify", "--json", tmp_path / "info.json")
    assert code == 0 and "every byte verified" in out and "text number" in out
    described = json.loads((tmp_path / "info.json").read_text(encoding="utf-8"))
    assert described["splits"]["total"]["documents"] == 60
    assert described["splits"] == json.loads((tmp_path / "build.json").read_text(encoding="utf-8"))["splits"]
    train = described["splits"]["train"]
    assert train["tokens_per_byte"] == train["tokens"] / train["bytes"]
    assert sum(sample["split"] == "train" for sample in described["samples"]) == 2


def test_dry_run_writes_nothing_and_still_checks(energylm, source, tmp_path):
    before = sorted(tmp_path.iterdir())
    code, out, _ = energylm("corpus", "build", source, "--field", "body", "--output", tmp_path / "c", "--dry-run")
    assert code == 0 and "would build 1 sources" in out and "source.jsonl" in out
    code, _, err = energylm("corpus", "build", source, "--output", tmp_path / "c", "--dry-run")
    assert code == 2 and "name one with --field; it has: body" in err
    assert sorted(tmp_path.iterdir()) == before


BAD = {
    "not UTF-8": ("a.txt", b"caf\xe9", [], "a.txt: byte 3 is not UTF-8; convert"),
    "empty corpus": ("a.txt", b" \n", [], "a.txt holds no text"),
    "not JSON": ("a.jsonl", b'{"text": "a"}\nnonsense\n', [], "a.jsonl line 2 is not JSON"),
    "no field": ("a.jsonl", b'{"txet": "a"}\n', [], "a.jsonl line 1 has no field 'text'; did you mean --field txet?"),
    "unknown ending": ("a.dat", b"x", [], "a.dat: its ending does not say"),
    "not Parquet": ("a.parquet", b"x", [], "a.parquet is not a readable Parquet file"),
    "unknown key": (
        "a.txt",
        b"x",
        ["--set", "vocabulary=9"],
        "unknown key 'vocabulary'; did you mean 'vocabulary_size'?",
    ),
    "unknown format": ("a.txt", b"x", ["--format", "html"], "--format: Input should be 'auto', 'text'"),
    "too small": ("a.txt", b"x", ["--vocabulary-size", "9"], "--vocabulary-size: Input should be greater"),
    "no tokenizer": (
        "a.txt",
        b"x",
        ["--tokenizer", "no/such"],
        "tokenizer 'no/such' is not here, and the hub cannot be reached",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_two(energylm, tmp_path, case):
    name, content, options, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    code, out, err = energylm("corpus", "build", tmp_path / name, "--output", tmp_path / "corpus", *options)
    assert code == 2 and out == ""
    (line,) = err.strip().splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing half-written


def test_missing_places_are_one_line(energylm, tmp_path):
    code, _, err = energylm("corpus", "build", tmp_path / "no.txt", "--output", tmp_path / "c")
    assert code == 2 and "no.txt does not exist" in err and len(err.strip().splitlines()) == 1
    code, _, err = energylm("corpus", "info", tmp_path)
    assert code == 2 and "is not a corpus" in err and len(err.strip().splitlines()) == 1
