"""Scoring files of all forms, in order, with rates; killed runs go on from what they kept."""

import json

import pytest

from energylm import Scorer
from energylm.errors import DataError
from energylm.jobs.job import Job
from energylm.verbs.cloze.score import TEXTS_AT_ONCE, Score, ScoreResult

LINES = [f"The clerk counts {number} boats." for number in range(7)]


def run(folder, file, **settings):
    return Score(model=str(folder), source=str(file), **settings).run()


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
    assert ScoreResult.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_more_texts_than_are_scored_at_once(model_folder, tmp_path):
    lines = [f"boat {number}" for number in range(TEXTS_AT_ONCE + 3)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    seen = []
    result = Score(model=str(model_folder), source=str(tmp_path / "a.txt")).run(Job(emit=seen.append))
    assert [json.loads(line)["text"] for line in seen] == lines == [score.text for score in result.scores]
    assert result.scores[-1].score == pytest.approx(Scorer.from_pretrained(model_folder).score(lines[-1:])[0], abs=1e-4)


def test_a_killed_run_goes_on_from_what_it_kept(model_folder, tmp_path, monkeypatch):
    lines = [f"boat {number}" for number in range(5)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    verb = Score(model=str(model_folder), source=str(tmp_path / "a.txt"), per="token")
    monkeypatch.setattr("energylm.verbs.cloze.score.TEXTS_AT_ONCE", 2)
    whole, seen, usual = verb.run(), [], Scorer.token_scores

    def watched(self, texts, **options):
        if len(seen) == 1:
            raise KeyboardInterrupt
        seen.append(texts)
        return usual(self, texts, **options)

    monkeypatch.setattr(Scorer, "token_scores", watched)
    with pytest.raises(KeyboardInterrupt):
        verb.run(Job(output=tmp_path / "kept"))
    monkeypatch.setattr(Scorer, "token_scores", lambda self, texts, **o: seen.append(texts) or usual(self, texts, **o))
    again = verb.run(Job(output=tmp_path / "kept"))
    assert seen == [lines[:2], lines[2:4], lines[4:]] and again.scores == whole.scores and again.seconds > 0
    verb.model_copy(update={"casing": "upper"}).run(Job(output=tmp_path / "kept"))
    assert len(seen) == 6  # another way to score is another job


def test_long_texts_are_named_by_their_line(masked_folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("boats\n\n" + "the clerk counts a bridge " * 30 + "\n")
    found = run(masked_folder, tmp_path / "a.txt")
    assert "a.txt line 3 (" in capsys.readouterr().err and [score.windows is None for score in found.scores] == [
        True,
        False,
    ]


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
