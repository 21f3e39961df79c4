"""RAID's files in and out: what is found by hand, killed runs, and bad files. The detector is a rule: a text that says
m 3 has log-odds 3 of machine, and one that says nothing has no tokens."""

import csv
import json
import math

import pytest
from click.testing import CliRunner

from energylm.bundles.detector import Detection
from energylm.cli.main import program
from energylm.errors import DataError
from energylm.jobs.job import Job
from energylm.registry import DETECTORS
from energylm.verbs import JudgeRaid
from energylm.verbs.detect import raid
from energylm.verbs.detect.raid import RaidResult

COLUMNS = ("id", "adv_source_id", "source_id", "model", "decoding", "repetition_penalty", "attack", "domain", "title")


class Rule:
    name, read, broken = "rule", 0, ()

    @classmethod
    def from_pretrained(cls, source, device=None):
        return cls()

    def predict(self, texts, max_tokens=None):
        detections = []
        for text in texts:
            if text in Rule.broken:
                raise DataError("stopped here")
            log_odds = float(text.split()[1]) if text else None
            verdict = "abstains" if log_odds is None else "machine" if log_odds > 2 else "human"
            detections.append(Detection(verdict, "", log_odds, log_odds, None, None, 1, 1, ()))
            Rule.read += 1
        return detections


@pytest.fixture
def rule(monkeypatch):
    monkeypatch.setattr(DETECTORS, "_parts", {**DETECTORS._parts, "rule": Rule})
    monkeypatch.setattr(Rule, "read", 0)
    monkeypatch.setattr(Rule, "broken", ())


def row(number, model, domain, attack, log_odds, decoding=""):
    cells = (f"id-{number}", "", "", model, decoding, "", attack, domain, 'A "title", with\na line')
    return dict(zip(COLUMNS, cells, strict=True)) | {"generation": "" if log_odds is None else f"m {log_odds}"}


def written(path, rows, *, columns=(*COLUMNS, "generation")):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def labelled_rows():
    """20 human texts a domain: in news log-odds 0 … 19, in books 100 lower. Their 95 % thresholds are 18 and −82."""
    rows = [row(f"h{n}", "human", "news", "none", n) for n in range(20)]
    rows += [row(f"b{n}", "human", "books", "none", n - 100) for n in range(20)]
    rows += [row("attacked", "human", "news", "homoglyph", 500)]  # neither sets a threshold nor is found
    rows += [row(f"g{n}", "gpt2", "news", "none", n, "greedy") for n in (18, 19, 20, 21)]  # three above 18
    rows += [row(f"c{n}", "chatgpt", "books", "none", n, "sampling") for n in (-90, -80)]  # one above −82
    rows += [row("z", "chatgpt", "books", "homoglyph", None, "sampling")]  # nothing to read: scores 0, below e^−82
    return rows


def test_what_is_found_by_hand(rule, tmp_path):
    file = written(tmp_path / "train.csv", labelled_rows())
    result = JudgeRaid(detector="rule", file=file).run(Job(tmp_path / "out"))
    logistic = {threshold: 1 / (1 + math.exp(-threshold)) for threshold in (18, -82)}
    assert result.thresholds == {"news": pytest.approx(logistic[18]), "books": pytest.approx(logistic[-82])}
    found = {(share.by, share.name): (share.flagged, share.texts) for share in result.shares}
    assert found == {
        ("all", "machine"): (4, 7),
        ("model", "chatgpt"): (1, 3),
        ("model", "gpt2"): (3, 4),
        ("model", "human"): (2, 40),
        ("domain", "books"): (1, 3),
        ("domain", "news"): (3, 4),
        ("attack", "homoglyph"): (0, 1),
        ("attack", "none"): (4, 6),
        ("decoding", "greedy"): (3, 4),
        ("decoding", "sampling"): (1, 3),
    }
    human = next(share for share in result.shares if share.name == "human")
    assert human.machine == 17 / 40 and human.share == 0.05 and 0 < human.lower < 0.05 < human.upper
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [record["id"] for record in predictions] == [row["id"] for row in labelled_rows()]
    assert all(record.keys() == {"id", "score"} and 0 <= record["score"] <= 1 for record in predictions)
    assert result.unread == 1 and predictions[-1]["score"] == 0.0
    assert "48 texts judged; 1 have no token and score 0" in result.summary()
    assert RaidResult.from_json(result.to_json() | {"predictions": result.predictions}) == result


def test_one_threshold_for_all_domains_would_find_other_texts(rule, tmp_path):
    """The mistake: books are judged by the news' threshold, so nothing is found in them."""
    rows = [r | {"domain": "all"} for r in labelled_rows()]
    result = JudgeRaid(detector="rule", file=written(tmp_path / "one.csv", rows)).run(Job(tmp_path / "out"))
    found = {(share.by, share.name): share.flagged for share in result.shares}
    assert found["model", "chatgpt"] == 0 and len(result.thresholds) == 1


def test_a_killed_run_goes_on_where_it_stopped(rule, tmp_path, monkeypatch):
    file = written(tmp_path / "train.csv", labelled_rows())
    monkeypatch.setattr(raid, "PORTION_TEXTS", 10)
    monkeypatch.setattr(Rule, "broken", ("m -85",))  # in the fourth portion
    verb, job = JudgeRaid(detector="rule", file=file), Job(tmp_path / "out")
    with pytest.raises(DataError, match="stopped here"):
        verb.run(job)
    assert Rule.read == 35 and not (tmp_path / "out" / "predictions.json").exists()
    monkeypatch.setattr(Rule, "broken", ())
    result = verb.run(job)
    assert Rule.read == 35 + 18  # three portions were kept
    assert result.shares == JudgeRaid(detector="rule", file=file).run(Job(tmp_path / "whole")).shares


def test_a_test_file_has_no_labels(rule, tmp_path):
    file = written(tmp_path / "test.csv", labelled_rows(), columns=("id", "generation"))
    done = CliRunner().invoke(
        program(), ["detect", "raid", "rule", str(file), "-o", str(tmp_path / "out")], catch_exceptions=False
    )
    assert done.exit_code == 0 and "the file has no labels" in done.stderr
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 48


def test_limit_and_dry_run(rule, tmp_path):
    file = written(tmp_path / "train.csv", labelled_rows())
    verb = JudgeRaid(detector="rule", file=file, limit=3)
    assert verb.check().startswith("would judge 13 texts of ") and "(with labels)" in verb.check()
    assert verb.run(Job(tmp_path / "out")).texts == 13


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no column 'id'"),
        (b"id,generation\n", "has no rows"),
        (b"id,text\n1,a\n", "has no column 'generation'; RAID's files have id and generation, it: id, text"),
        (b"id,generation\n1,a\n2,b\n1,c\n", "row 3 has the id '1' of row 1"),
        (b"id,generation\n1\n", "row 1 has not as many cells"),
        (b"id,generation\n1,a,b\n", "row 1 has not as many cells"),
        (b"id,generation\n1,\xff\n", "is not UTF-8"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\xff", "is not UTF-8"),
        (b"PK\x03\x04 no table", "has no column 'id'"),
    ],
)
def test_bad_files_are_one_line(rule, tmp_path, content, said):
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(DataError) as refused:
        JudgeRaid(detector="rule", file=tmp_path / "bad.csv").run(Job(tmp_path / "out"))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(DataError, match="does not exist"):
        JudgeRaid(detector="rule", file=tmp_path / "none.csv").check()
