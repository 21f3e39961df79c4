"""`energylm detect` as a person types it."""

import json

import pytest
from click.testing import CliRunner

from energylm.cli.main import program
from energylm.errors import ConfigError, DataError, ModelError
from energylm.verbs import EvaluateDetector, TrainDetector


def invoke(*arguments, **options):
    return CliRunner().invoke(program(), ["detect", *map(str, arguments)], catch_exceptions=False, **options)


@pytest.fixture(scope="module")
def detector(bert_folder, detection_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli-detect") / "run"
    done = invoke(
        "train", *data(detection_folder), "--init", bert_folder, "-o", folder, *SMALL, "--json", f"{folder}.json"
    )
    assert done.exit_code == 0 and "AUROC" in done.stdout and len(done.stdout.splitlines()) == 1
    assert json.loads(folder.with_suffix(".json").read_text())["steps"] == 20
    return folder / "model"


SMALL = ("--steps", 20, "--batch", 4, "--learning-rate", "1e-2", "--block", 32, "--fpr", 0.1)
SMALL += ("--set", "training.validation.every_steps=10", "--set", "training.threads=1")


def data(folder, *, pairs=False):
    options = ("--human", folder / "human.jsonl", "--machine", folder / "machine.jsonl")
    return (*options, "--pairs", folder / "pairs.json") if pairs else options


def test_dry_runs_write_nothing(bert_folder, detection_folder, detector, tmp_path):
    done = invoke(
        "train",
        *data(detection_folder, pairs=True),
        "--init",
        bert_folder,
        "-o",
        tmp_path / "run",
        "--block",
        32,
        "--dry-run",
    )
    assert done.exit_code == 0 and "would train: detector" in done.stdout and not (tmp_path / "run").exists()
    done = invoke("calibrate", detector, "--human", detection_folder / "human.jsonl", "--dry-run")
    assert "would calibrate" in done.stdout and "120 human and 0 machine" in done.stdout
    done = invoke("eval", detector, *data(detection_folder), "--dry-run")
    assert "would judge 120 human and 120 machine texts" in done.stdout
    done = invoke("run", detector, "--text", "a", "--dry-run")
    assert "would judge 1 texts" in done.stdout


def test_calibrate_and_eval(detection_folder, detector, tmp_path):
    done = invoke(
        "calibrate", detector, "--human", detection_folder / "human.jsonl", "--fpr", 0.05, "--json", tmp_path / "c.json"
    )
    assert "for a false-positive rate of 0.05 over human texts like these" in done.stdout
    assert "| 64 to 127 tokens | texts of this length | 120 |" in done.stdout
    assert "| 8 to 15 tokens | none: it abstains | 0 | – |" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text())["calibration"]["asked_rate"] == 0.05
    pairs = ("--pairs", detection_folder / "pairs.json", "--train-human", detection_folder / "human.jsonl")
    done = invoke(
        "eval",
        detector,
        *pairs,
        "--train-machine",
        detection_folder / "machine.jsonl",
        "--output",
        tmp_path / "out",
        "--json",
        tmp_path / "e.json",
        "--set",
        "resamples=50",
        "--set",
        "lengths=[16]",
    )
    assert done.exit_code == 0 and "| TF-IDF | 40 | 40 |" in done.stdout and "AUROC" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["detector"]["auroc"]["lower"] <= found["detector"]["auroc"]["value"]
    assert found["false_positive_rate"] == 0.05 and found["lengths"].keys() == {"16"}


def test_run_from_text_file_and_standard_input(detector, tmp_path):
    text = "The old miller paints the boats 123. " * 11
    (tmp_path / "essay.txt").write_text(text)
    done = invoke("run", detector, tmp_path / "essay.txt", "--text", "A map.", "--html", tmp_path / "page.html")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in lines] == ["text 1", "essay.txt"]
    assert lines[1]["verdict"] == "machine" and lines[1]["tokens_used"] == lines[1]["tokens"]
    assert lines[0]["verdict"] == "abstains" and lines[1]["blocks"][0]["start"] == 0
    assert (tmp_path / "page.html").exists()
    (tmp_path / "an essay with a name that is far too long for a table.txt").write_text(text)
    done = invoke("run", detector, tmp_path, "--table", "--text", "A map.", env={"COLUMNS": "80"})
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "verdict" in lines[1] and "P(machine)" in lines[1]
    rows = [line for line in lines if "│" in line]
    assert len(rows) == 3 and "essay.txt │ machine" in rows[2] and "far too long for a table.txt" in rows[1]
    assert rows[1].split("│")[-2] == rows[2].split("│")[-2]  # a reason once, however many texts share it
    assert sum(line.startswith(("1  ", "2  ", "3  ")) for line in lines) == 2


def test_standard_input_is_one_text_or_lines(detector, monkeypatch):
    """/dev/stdin is the process's own, so what would be read is looked at."""
    asked = {}

    def caught(paths, **options):
        asked.update(options, paths=paths)
        raise DataError("enough")

    monkeypatch.setattr("energylm.verbs.detect.judging.read_unlabelled", caught)
    for extra, form in (((), "text"), (("--format", "lines"), "lines")):
        with pytest.raises(DataError, match="enough"):
            invoke("run", detector, "-", *extra, input="a text")
        assert asked["paths"] == ["/dev/stdin"] and asked["form"] == form


def test_a_block_alone_sets_its_stride(bert_folder, detection_folder, tmp_path):
    """Three quarters of a block, as 120 of 160; what is given wins, and gaps are refused."""
    begin = ("train", *data(detection_folder), "--init", bert_folder, "-o", tmp_path / "run", "--dry-run")
    assert "blocks of 32 tokens by 24," in invoke(*begin, "--block", 32).stdout
    usual = TrainDetector().text_blocks
    assert (usual.tokens, usual.stride) == (160, 120)
    assert "blocks of 32 tokens by 8," in invoke(*begin, "--block", 32, "--set", "text_blocks.stride=8").stdout
    with pytest.raises(ConfigError, match="stride 33 exceeds the block of 32 tokens"):
        invoke(*begin, "--block", 32, "--set", "text_blocks.stride=33")
    with pytest.raises(ConfigError, match="--block: Input should be greater than or equal to 8"):
        invoke(*begin, "--block", 7)


def test_finished_portions_are_kept(detector, detection_folder, tmp_path, monkeypatch):
    begin = ("run", detector, detection_folder / "human.jsonl", "--output", tmp_path / "kept")
    first = invoke(*begin)
    assert len(first.stdout.splitlines()) == 120
    monkeypatch.setattr("energylm.bundles.detector.Detector.predict", None)
    assert invoke(*begin).stdout == first.stdout


def test_the_baseline_reads_its_texts_as_those_to_judge_are_read():
    verb = EvaluateDetector(detector="d", human="h.csv", field="body", format="jsonl", train_human=["t.csv"])
    assert (verb.baseline_texts.field, verb.baseline_texts.format) == ("body", "jsonl")
    own = EvaluateDetector(detector="d", human="h", field="body", train={"human": "t", "field": "own"})
    assert own.baseline_texts.field == "own" and EvaluateDetector(detector="d", human="h").baseline_texts is None


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            ("train", "--human", "h.jsonl", "-o", "run"),
            DataError,
            "h.jsonl does not exist; give a file or a folder of human texts",
        ),
        (("train", "-o", "run"), DataError, "no texts were named"),
        (("train", "--human", "h", "-o", "run", "--format", "xml"), ConfigError, "--format"),
        (("train", "--human", "h", "-o", "run", "--part", "half"), ConfigError, "--part"),
        (
            ("train", "--human", "h", "-o", "run", "--set", "text_blocks.strid=3"),
            ConfigError,
            "did you mean 'text_blocks.stride'",
        ),
        (("train", "--human", "h", "-o", "run", "--fpr", "0"), ConfigError, "--fpr"),
        (("calibrate", "nothing"), DataError, "no texts were named"),
        (("eval", "nothing"), DataError, "no texts were named"),
        (("run", "nothing"), DataError, "nothing does not exist; give a file or a folder of texts to judge"),
        (("run", "no/such/detector", "--text", "a"), ModelError, "no/such/detector"),
        (("run", "x", "missing.txt", "--dry-run"), ConfigError, "missing.txt does not exist"),
    ],
)
def test_mistakes_are_one_line(arguments, error, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as refused:
        invoke(*arguments)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value.exit_code == 2 and not list(tmp_path.iterdir())


def test_one_class_and_too_few_texts(detection_folder, bert_folder, detector, tmp_path):
    human = ("--human", detection_folder / "human.jsonl")
    with pytest.raises(DataError, match="one class only: training needs"):
        invoke("train", *human, "--init", bert_folder, "-o", tmp_path / "run")
    with pytest.raises(DataError, match="one class only: an evaluation needs"):
        invoke("eval", detector, *human)
    with pytest.raises(DataError, match=r"0\.001 needs at least 999, came 120; add 879"):
        invoke("calibrate", detector, *human, "--fpr", "0.001")
