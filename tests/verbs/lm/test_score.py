"""Scoring a file: texts by line or field, windows, order, and the mistakes that name file and cure."""

import json
import math

import pytest

from energylm import LanguageModel
from energylm.data.windows import even_windows
from energylm.errors import DataError
from energylm.jobs.job import Job
from energylm.verbs import ScoreLM
from energylm.verbs.lm.working import TEXTS_AT_ONCE, LMScores

LINES = [f"The clerk counts {number} boats." for number in range(TEXTS_AT_ONCE + 6)]


@pytest.fixture(scope="module")
def model(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture
def score(model_folder):
    """Scores of a file, with the verb's options."""

    def run(file, *, emit=None, **options):
        return ScoreLM(language_model=str(model_folder), source=str(file), **options).run(Job(emit=emit))

    return run


def test_lines_and_records_score_alike_and_in_order(model, score, tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join(LINES) + "\n", encoding="utf-8")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES))
    seen = []
    by_line = score(tmp_path / "texts.txt", emit=seen.append)
    by_record = score(tmp_path / "texts.jsonl", field="body")
    assert [json.loads(line)["log_prob"] for line in seen] == [score.log_prob for score in by_line.scores]
    assert len(seen) == len(LINES)
    assert [s.log_prob for s in by_line.scores] == pytest.approx([s.log_prob for s in by_record.scores])
    assert by_line.scores[7].log_prob == pytest.approx(model.score(LINES[7])[0].log_prob, abs=1e-4)
    total = -sum(score.log_prob for score in by_line.scores)
    assert by_line.perplexity.value == pytest.approx(math.exp(total / sum(score.tokens for score in by_line.scores)))
    assert LMScores.from_json(json.loads(json.dumps(by_line.to_json()))) == by_line


def test_windows_reach_from_the_beginning_to_the_end():
    """By hand: 10 tokens, windows of 3: starts 0, 7·1/2 = 3 (rounded down), 7."""
    windows = even_windows(range(10), windows=3, length=3, file="f")
    assert windows == [[0, 1, 2], [3, 4, 5], [7, 8, 9]]
    assert even_windows(range(10), windows=1, length=3, file="f") == [[0, 1, 2]]
    for count in range(1, 34):
        windows = even_windows(range(100), windows=count, length=3, file="f")
        assert len({token for window in windows for token in window}) == 3 * count  # none overlap


def test_windowed_perplexity_says_what_it_did(model, score, texts_folder):
    file = texts_folder / "00.txt"
    result = score(file, windows=4, length=16, prefix_tokens=10)
    assert result.perplexity.tokens == 4 * 6
    assert result.perplexity.convention.startswith("4 evenly spaced windows of 16 tokens, nats per token of ")
    assert "all tokens but the first 10, which are given" in result.perplexity.convention
    ids = model.encode(file.read_text())
    assert result.scores[0].log_prob == pytest.approx(model.score([ids[:16]], prefix_tokens=10)[0].log_prob, abs=1e-4)


def test_mistakes_name_file_and_cure(score, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        score(tmp_path / "empty.txt")
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        score(tmp_path / "none.txt")
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        score(tmp_path / "none.txt", windows=2)
    (tmp_path / "latin.txt").write_bytes("née\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt line 1: byte 1 is not UTF-8"):
        score(tmp_path / "latin.txt")
    (tmp_path / "short.txt").write_text("The clerk.")
    with pytest.raises(DataError, match=r"short\.txt has .* 5 windows of 16 need 80"):
        score(tmp_path / "short.txt", windows=5, length=16)
    (tmp_path / "bad.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl line 1 has no field 'text'"):
        score(tmp_path / "bad.jsonl")
