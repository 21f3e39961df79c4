"""`energylm score`, `rerank`, `evaluate blimp`: data on stdout, the rest on stderr, mistakes are one line, exit 2."""

import json
import os
import sys

import pytest

from energylm import Scorer
from energylm.cli.main import main
from energylm.config.cloze import ScorerConfig

LINES = ["The clerk counts the boats.", "A sailor mends a bridge."]
LISTS = {
    f"u{number}": {
        "ref": f"the clerk counts {number} boats",
        "hyp_1": {"text": f"the clerk count {number} boats", "score": -1.0},
        "hyp_2": {"text": f"the clerk counts {number} boats", "score": -1.0 - number / 4},
    }
    for number in range(1, 5)
}


@pytest.fixture
def energylm(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "lists.json").write_text(json.dumps(LISTS))
    (tmp_path / "one.json").write_text(json.dumps({"u1": LISTS["u1"]}))
    (tmp_path / "bare.json").write_text(json.dumps({"u": {"hyp_1": LISTS["u1"]["hyp_1"]}}))
    good = '{"hypotheses": [{"text": "x", "score": 1}]}'
    (tmp_path / "broken.jsonl").write_text(good + "\n" + good[:-4] + "\n")
    (tmp_path / "twice.json").write_text('{"u": {"hyp_1": {"text": "x", "score": 1}}, "u": {"hyp_1": {}}}')
    (tmp_path / "nan.json").write_text('{"u": {"hyp_1": {"text": "x", "score": NaN}}}')
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "a boat", "sentence_bad": "boat a", "UID": "order"}\n')

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return run


def test_score_prints_a_line_a_text(energylm, electric_folder, tmp_path):
    code, out, err = energylm("score", electric_folder, "texts.txt", "--per", "word", "--json", "out.json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["text"] for row in rows] == LINES
    assert [row["score"] for row in rows] == pytest.approx(
        Scorer.from_pretrained(electric_folder).score(LINES), abs=1e-4
    )
    assert [word for word, _ in rows[1]["word_scores"]] == LINES[1].split() and "token_scores" not in rows[0]
    assert "texts/s" in err and "one pass (electric)" in err and "higher = better" in err
    saved = json.loads((tmp_path / "out.json").read_text())["scores"][0]
    assert {name: value for name, value in saved.items() if value is not None} == rows[0]


def test_score_of_a_masked_model_by_token(energylm, masked_folder):
    code, out, err = energylm(
        "score", masked_folder, "texts.txt", "--per", "token", "--masking", "within-word", "--normalise", "token"
    )
    row = json.loads(out.splitlines()[0])
    assert code == 0 and row["score"] == pytest.approx(sum(score for _, score in row["token_scores"]) / row["tokens"])
    assert "together with the later ones of its word" in err


def test_rerank_tunes_and_reports(energylm, model_folder, tmp_path):
    code, out, err = energylm(
        "rerank",
        model_folder,
        "lists.json",
        "--dev",
        "lists.json",
        "--step",
        0.1,
        "-o",
        "out",
        "--json",
        "r.json",
        "--best",
        "best.tsv",
    )
    assert code == 0 and out.startswith("| set | lists | λ | 1-best | WER |") and "tuned on itself" in out
    assert "hypotheses scored with" in err and "report.html" in err and "tuned on 4 lists only" in err
    saved = json.loads((tmp_path / "r.json").read_text())
    outcome = saved["sets"]["lists"]
    assert len(outcome["tuning"]["values"]) == 14 and outcome["one_best"]["value"] == pytest.approx(20)
    assert (tmp_path / "best.tsv").read_text() == (tmp_path / "out" / "best-1.tsv").read_text()


def test_rerank_with_two_scorers_and_fixed_weights(energylm, model_folder, masked_folder):
    code, out, _ = energylm(
        "rerank", model_folder, "lists.json", "--scorer", masked_folder, "--weight", 0.2, "--weight", 0.3, "--best", "-"
    )
    assert code == 0 and [line.split("\t")[0] for line in out.splitlines()] == list(LISTS)
    code, out, _ = energylm("rerank", model_folder, "bare.json", "--weight", 0.2)
    assert code == 0 and out == "u\tthe clerk count 1 boats\n"


@pytest.fixture
def stdin():
    """A function that makes a file this process's standard input, as a shell's `<` and `|` do."""
    before = os.dup(0)

    def put(path):
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)

    yield put
    os.dup2(before, 0)
    os.close(before)


def test_rerank_reads_standard_input(energylm, stdin, model_folder, tmp_path):
    """The same choice and the same table from a pipe as from a file, in each format, told from what it holds."""
    (tmp_path / "lists.jsonl").write_text(
        "".join(
            json.dumps({"id": name, "ref": one["ref"], "hypotheses": [one["hyp_1"], one["hyp_2"]]}) + "\n"
            for name, one in LISTS.items()
        )
    )
    _, table, _ = energylm("rerank", model_folder, "lists.json", "--weight", 0.2)
    for name in ("lists.json", "lists.jsonl"):
        stdin(tmp_path / name)
        code, out, err = energylm("rerank", model_folder, "-", "--weight", 0.2)
        assert code == 0 and out == table.replace("\n| lists |", "\n| standard input |") and out != table, err
    stdin(tmp_path / "lists.json")
    code, out, _ = energylm("rerank", model_folder, "-", "--dev", "lists.json", "--best", "-")
    assert code == 0 and [line.split("\t")[0] for line in out.splitlines()] == list(LISTS)
    stdin(tmp_path / "lists.json")
    code, out, _ = energylm("rerank", model_folder, "-", "--weight", 0.2, "--dry-run")
    assert code == 0 and out.startswith("would score 4 lists of standard input")
    stdin(tmp_path / "texts.txt")
    code, out, err = energylm("rerank", model_folder, "-", "--weight", 0.2)
    assert code == 2 and out == "" and "standard input: its name and its first line tell no format" in err


def test_device_and_dtype_are_what_the_model_gets(energylm, model_folder, monkeypatch):
    """float64 gives other last digits than float32; the CPU is what is taken anyway, and a GPU that is not there is no
    traceback."""
    _, usual, _ = energylm("score", model_folder, "texts.txt")
    _, on_cpu, _ = energylm("score", model_folder, "texts.txt", "--device", "cpu", "--dtype", "float32")
    _, wide, _ = energylm("score", model_folder, "texts.txt", "--dtype", "float64")
    assert usual == on_cpu != wide
    scores, wide_scores = ([json.loads(line)["score"] for line in text.splitlines()] for text in (usual, wide))
    assert scores == pytest.approx(wide_scores, rel=1e-4) and scores != wide_scores
    config = ScorerConfig(dtype="float64", device="cpu")
    assert Scorer.from_pretrained(model_folder, config=config).score(LINES) == pytest.approx(wide_scores, rel=1e-12)
    asked = []
    loaded = classmethod(lambda cls, *_, config, **__: asked.append((config.device, config.dtype)) or sys.exit(7))
    monkeypatch.setattr(Scorer, "from_pretrained", loaded)
    for verb, *rest in (("score", "texts.txt"), ("rerank", "lists.json", "--weight", "1")):
        assert energylm(verb, model_folder, *rest, "--device", "cuda:1", "--dtype", "bfloat16")[0] == 7
    assert asked == [("cuda:1", "bfloat16")] * 2


def test_evaluate_blimp(energylm, electric_folder):
    code, out, err = energylm("evaluate", "blimp", electric_folder, "pairs.jsonl", "--json", "p.json")
    assert code == 0 and "| order |" in out and "mean accuracy" in err


def test_dry_runs_say_what_would_be_done(energylm, electric_folder):
    for arguments, words in (
        (("score", electric_folder, "texts.txt"), "would score every text of texts.txt"),
        (("rerank", electric_folder, "lists.json", "--dev", "lists.json"), "would score 4 lists of lists.json"),
        (("evaluate", "blimp", electric_folder, "pairs.jsonl"), "would score 1 pairs of 1 paradigms"),
    ):
        code, out, _ = energylm(*arguments, "--dry-run")
        assert code == 0 and out.startswith(words) and str(electric_folder) in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "{model}", "none.txt"), "none.txt does not exist"),
        (
            ("score", "{model}", "texts.txt", "--method", "pseudo-log-likelihood"),
            "causal language model: it has a log-likelihood",
        ),
        (("score", "{model}", "texts.txt", "--method", "guess"), "--method: Input should be"),
        (("score", "{model}", "texts.txt", "--masking", "within-word"), "is for masked language models"),
        (("score",), "MODEL is missing"),
        (("rerank", "{model}"), "which lists? give a scorer and its files"),
        (("rerank", "{model}", "lists.json"), "neither dev nor weights"),
        (("rerank", "{model}", "lists.json", "--dev", "one.json"), "cannot be tuned on 1 list"),
        (("rerank", "{model}", "lists.json", "--dev", "bare.json"), "'u' has no reference"),
        (("rerank", "{model}", "texts.txt", "--weight", "1"), "tell no format"),
        (
            ("rerank", "{model}", "lists.json", "one.json", "--dev", "a", "--dev", "b", "--dev", "c"),
            "3 × --dev came for 2",
        ),
        (("rerank", "{model}", "lists.json", "--dev", "lists.json", "--weight", "1"), "both dev and weights"),
        (
            ("rerank", "{model}", "lists.json", "--weight", "1", "--references", "texts.txt"),
            "2 references but 4 are needed",
        ),
        (("rerank", "{model}", "lists.json", "--weight", "1", "--format", "xml"), "--format: Input should be"),
        (("rerank", "{model}", "lists.json", "--weight", "nan"), "weight"),
        (("rerank", "{model}", "lists.json", "--weight", "inf"), "should be a finite number"),
        (("rerank", "{model}", "lists.json", "--dev", "lists.json", "--highest", "inf"), "should be a finite number"),
        (("rerank", "{model}", "lists.json", "--dev", "lists.json", "--step", "1e-9"), "100,000 values of λ; take a"),
        (("rerank", "{model}", "broken.jsonl", "--weight", "1"), "broken.jsonl line 2 is not JSON"),
        (("rerank", "{model}", "twice.json", "--weight", "1"), "twice.json: key 'u' comes twice"),
        (("rerank", "{model}", "nan.json", "--weight", "1"), "'u', hyp_1 has no score of the recogniser (came nan)"),
        (("rerank", "{model}", "-", "--weight", "1", "--references", "-"), "standard input, which can be read once"),
        (
            ("rerank", "{model}", "lists.json", "--weight", "1", "--references", "no.txt"),
            "no.txt does not exist; give a file of references",
        ),
        (("rerank", "{model}", "lists.json", "--weight", "1", "--device", "gpu"), "device 'gpu' is none that torch"),
        (("rerank", "{model}", "lists.json", "--weight", "1", "--device", "cuda:99"), "device cuda:99 came, but this"),
        (("rerank", "{model}", "lists.json", "--weight", "1", "--dtype", "int16"), "--dtype: Input should be"),
        (
            ("score", "{model}", "texts.txt", "--device", "cuda:99", "--dry-run"),
            "device cuda:99 came, but this machine",
        ),
        (("score", "{model}", "texts.txt", "--dtype", "float16", "--device", "cpu"), "came for a CPU"),
        (
            ("score", "{masked}", "texts.txt", "--dtype", "bfloat16"),
            "dtype bfloat16 is for causal language models and Electric",
        ),
        (("score", "{model}", "texts.txt", "--normalise", "sentence"), "--normalise: Input should be"),
        (("evaluate", "blimp", "{model}", "none.jsonl"), "holds no minimal pairs"),
        (("evaluate", "blimp", "./none", "pairs.jsonl"), "does not exist"),
    ],
)
def test_mistakes_are_one_line(energylm, model_folder, bert_folder, masked_folder, arguments, words):
    folders = {"{model}": model_folder, "{encoder}": bert_folder, "{masked}": masked_folder}
    code, out, err = energylm(*(folders.get(argument, argument) for argument in arguments))
    assert code == 2 and out == ""
    lines = [line for line in err.splitlines() if "tuned on" not in line or "cannot" in line]
    assert len(lines) == 1 and words in lines[0], err
