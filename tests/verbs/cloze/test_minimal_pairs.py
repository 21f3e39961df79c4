"""Minimal pairs with hand-made counts, and intervals by hand."""

import json
from itertools import pairwise

import pytest

from energylm import Scorer
from energylm.errors import DataError
from energylm.jobs.job import Job
from energylm.verbs.cloze.evaluate import EvaluateBlimp, MinimalPairsResult, Paradigm


def pairs_file(path, pairs, paradigm):
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "linguistics_term": "made up"}
        for good, bad in pairs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def pairs(model_folder, tmp_path):
    """Two paradigms whose right answers follow from the model's own scores: 3 of 4 right, and 1 of 3 with one tie."""
    scorer = Scorer.from_pretrained(model_folder)
    texts = [f"the clerk counts {what}" for what in ("boats", "a map", "lamps", "seven", "letters")]
    ranked = sorted(texts, key=lambda text: -scorer.score([text])[0])
    pairs_file(tmp_path / "a.jsonl", [*list(pairwise(ranked))[:3], ranked[1::-1]], "first")
    pairs_file(tmp_path / "b.jsonl", [ranked[:2], ranked[2:4][::-1], (ranked[0], ranked[0])], "second")
    return tmp_path


def test_minimal_pairs_by_hand(model_folder, pairs, tmp_path):
    run = EvaluateBlimp(model=str(model_folder), sources=(str(pairs),)).run(Job(output=tmp_path / "out"))
    assert [(one.name, one.pairs, one.right, one.tied) for one in run.paradigms] == [
        ("first", 4, 3, 0),
        ("second", 3, 1, 1),
    ]
    assert run.mean.value == pytest.approx((3 / 4 + 1 / 3) / 2)
    variance = (3 / 4 * 1 / 4 / 4 + 1 / 3 * 2 / 3 / 3) / 4
    assert run.mean.upper - run.mean.value == pytest.approx(1.96 * variance**0.5, rel=1e-3)
    assert run.table.rows[-1][0] == "mean of paradigms" and (tmp_path / "out" / "report.html").is_file()
    saved = json.loads(json.dumps(run.to_json()))
    assert saved["mean"]["percent"] == 100 * run.mean.value and saved["paradigms"][0]["accuracy"]["value"] == 0.75
    assert MinimalPairsResult.from_json(saved).table == run.table and "pairs/s" in run.summary()


def test_good_and_bad_exchanged_is_noticed(model_folder, pairs):
    """Teeth: with the sentences exchanged the accuracy is one minus itself, ties apart."""
    rows = [json.loads(line) for line in (pairs / "a.jsonl").read_text().splitlines()]
    pairs_file(pairs / "a.jsonl", [(row["sentence_bad"], row["sentence_good"]) for row in rows], "first")
    run = EvaluateBlimp(model=str(model_folder), sources=str(pairs / "a.jsonl")).run()
    assert run.paradigms[0].right == 1


def test_wilsons_interval_by_hand():
    """80 of 100: centre (0.8 + z²/200) / (1 + z²/100) = 0.7889, half z·√(0.0016 + z²/40000) / 1.0384 = 0.0777."""
    accuracy = Paradigm("x", "", 100, 80, 0).accuracy
    assert (accuracy.value, accuracy.lower, accuracy.upper) == pytest.approx((0.8, 0.7112, 0.8666), abs=1e-4)


def test_pairs_are_limited_and_missing_ones_named(pairs, data_folder, monkeypatch):
    limited = EvaluateBlimp(model="x", sources=(str(pairs),), limit=2).read_pairs()
    assert [len(of_paradigm) for of_paradigm in limited.values()] == [2, 2]
    with pytest.raises(DataError, match="holds no minimal pairs"):
        EvaluateBlimp(model="x", sources=(str(pairs / "none"),)).read_pairs()
    assert len(EvaluateBlimp(model="x", limit=1).read_pairs()) == 30
    monkeypatch.delenv("ENERGYLM_DATA")
    with pytest.raises(DataError, match="ENERGYLM_DATA is not set"):
        EvaluateBlimp(model="x").read_pairs()
