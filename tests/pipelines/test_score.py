"""Scoring files of all forms, in order, with rates; and minimal pairs with hand-made counts."""

import json
from itertools import pairwise

import pytest

from energylm import Scorer
from energylm.config.evaluate import MinimalPairsConfig
from energylm.config.score import ScoreConfig
from energylm.errors import DataError
from energylm.pipelines.minimal_pairs import Paradigm, judge_minimal_pairs, read_pairs
from energylm.pipelines.score import TEXTS_AT_ONCE, score

LINES = [f"The clerk counts {number} boats." for number in range(7)]


def run(folder, file, **settings):
    return score(ScoreConfig(model=str(folder), source=str(file), **settings))


def test_lines_tsv_and_jsonl_score_alike_and_in_order(electric_folder, tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(LINES) + "\n")
    (tmp_path / "a.tsv").write_text("id\tsentence\n" + "".join(f"{n}\t{line}\n" for n, line in enumerate(LINES)))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES))
    expected = Scorer.from_pretrained(electric_folder).score(LINES)
    for name, settings in (("a.txt", {}), ("a.tsv", {"field": "sentence"}), ("a.jsonl", {"field": "body"})):
        found = run(electric_folder, tmp_path / name, **settings)
        assert [one.score for one in found.scores] == pytest.approx(expected, abs=1e-4)
        assert [one.text for one in found.scores] == LINES
    assert found.texts_per_second > 0 and f"{found.tokens:,} tokens" in found.summary()
    assert found.to_json()["tokens_per_second"] == found.tokens_per_second


def test_more_texts_than_are_scored_at_once(model_folder, tmp_path):
    lines = [f"boat {number}" for number in range(TEXTS_AT_ONCE + 3)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    seen = []
    found = score(ScoreConfig(model=str(model_folder), source=str(tmp_path / "a.txt")), on_score=seen.append)
    assert [one.text for one in seen] == lines and found.scores == seen
    assert seen[-1].score == pytest.approx(Scorer.from_pretrained(model_folder).score(lines[-1:])[0], abs=1e-4)


def test_a_killed_run_goes_on_from_what_it_kept(model_folder, tmp_path, monkeypatch):
    lines = [f"boat {number}" for number in range(5)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    config = ScoreConfig(model=str(model_folder), source=str(tmp_path / "a.txt"), per="token")
    monkeypatch.setattr("energylm.pipelines.score.TEXTS_AT_ONCE", 2)
    whole, seen, usual = score(config), [], Scorer.token_scores

    def watched(self, texts, **options):
        if len(seen) == 1:
            raise KeyboardInterrupt
        seen.append(texts)
        return usual(self, texts, **options)

    monkeypatch.setattr(Scorer, "token_scores", watched)
    with pytest.raises(KeyboardInterrupt):
        score(config, keep=tmp_path / "kept")
    monkeypatch.setattr(Scorer, "token_scores", lambda self, texts, **o: seen.append(texts) or usual(self, texts, **o))
    again = score(config, keep=tmp_path / "kept")
    assert seen == [lines[:2], lines[2:4], lines[4:]] and again.scores == whole.scores and again.seconds > 0
    score(config.model_copy(update={"casing": "upper"}), keep=tmp_path / "kept")
    assert len(seen) == 6  # another way to score is another job


def test_long_texts_are_named_by_their_line(masked_folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("boats\n\n" + "the clerk counts a bridge " * 30 + "\n")
    found = run(masked_folder, tmp_path / "a.txt")
    assert "a.txt line 3 (" in capsys.readouterr().err and [one.windows > 1 for one in found.scores] == [False, True]


def test_mistakes_name_file_and_cure(model_folder, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        run(model_folder, tmp_path / "empty.txt")
    with pytest.raises(DataError, match="does not exist"):
        run(model_folder, tmp_path / "none.txt")
    (tmp_path / "a.tsv").write_text("id\tsentence\n1\tboats\n")
    with pytest.raises(DataError, match="line 2 has no field 'text'"):
        run(model_folder, tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("id\ttext\n1\n")
    with pytest.raises(DataError, match="line 2 has 1 tab-separated columns"):
        run(model_folder, tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("text\ttext\n")
    with pytest.raises(DataError, match="names a column twice"):
        run(model_folder, tmp_path / "a.tsv")
    (tmp_path / "a.jsonl").write_text('{"text": "boats"}\n{"text": ""}\n')
    with pytest.raises(DataError, match="line 2 is empty"):
        run(model_folder, tmp_path / "a.jsonl")


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
    run = judge_minimal_pairs(
        MinimalPairsConfig(model=str(model_folder), sources=(str(pairs),)), output=tmp_path / "out"
    )
    assert [(one.name, one.pairs, one.right, one.tied) for one in run.paradigms] == [
        ("first", 4, 3, 0),
        ("second", 3, 1, 1),
    ]
    assert run.mean.value == pytest.approx((3 / 4 + 1 / 3) / 2)
    variance = (3 / 4 * 1 / 4 / 4 + 1 / 3 * 2 / 3 / 3) / 4
    assert run.mean.upper - run.mean.value == pytest.approx(1.96 * variance**0.5, rel=1e-3)
    assert run.table.rows[-1][0] == "mean of paradigms" and (tmp_path / "out" / "report.html").is_file()
    assert json.dumps(run.to_json()) and "pairs/s" in run.summary()


def test_good_and_bad_exchanged_is_noticed(model_folder, pairs):
    """Teeth: with the sentences exchanged the accuracy is one minus itself, ties apart."""
    rows = [json.loads(line) for line in (pairs / "a.jsonl").read_text().splitlines()]
    pairs_file(pairs / "a.jsonl", [(row["sentence_bad"], row["sentence_good"]) for row in rows], "first")
    run = judge_minimal_pairs(MinimalPairsConfig(model=str(model_folder), sources=(str(pairs / "a.jsonl"),)))
    assert run.paradigms[0].right == 1


def test_wilsons_interval_by_hand():
    """80 of 100: centre (0.8 + z²/200) / (1 + z²/100) = 0.7889, half z·√(0.0016 + z²/40000) / 1.0384 = 0.0777."""
    assert tuple(Paradigm("x", "", 100, 80, 0).accuracy) == pytest.approx((0.8, 0.7112, 0.8666), abs=1e-4)


def test_pairs_are_limited_and_missing_ones_named(pairs, data_folder, monkeypatch):
    assert [
        len(found) for found in read_pairs(MinimalPairsConfig(model="x", sources=(str(pairs),), limit=2)).values()
    ] == [
        2,
        2,
    ]
    with pytest.raises(DataError, match="holds no minimal pairs"):
        read_pairs(MinimalPairsConfig(model="x", sources=(str(pairs / "none"),)))
    assert len(read_pairs(MinimalPairsConfig(model="x", limit=1))) == 30
    monkeypatch.delenv("ENERGYLM_DATA")
    with pytest.raises(DataError, match="ENERGYLM_DATA is not set"):
        read_pairs(MinimalPairsConfig(model="x"))
