"""Pairs framed and cut; SQuAD files; windows over long contexts whose targets lead back to the answer."""

import json

import numpy as np
import pytest

from energylm.config.cloze import SpanConfig
from energylm.data.examples import PairEncoder
from energylm.data.squad import NOWHERE, Question, read_squad, span_windows
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ConfigError, DataError

CONTEXT = "The old miller sells seven lamps. Her sister paints a bridge. A stranger remembers the winter coats."


@pytest.fixture(scope="module")
def bert(bert_folder):
    return load_tokenizer(bert_folder)


@pytest.fixture(scope="module")
def plain(corpus_folder):
    return load_tokenizer(corpus_folder)


def test_frames(bert, plain):
    """[CLS] = 2 and [SEP] = 3 around a text; of a tokenizer without a frame, end-of-text (0)."""
    one = PairEncoder(bert, max_tokens=40)
    single, pair = one.encode(["a boat"]), one.encode(["a boat"], ["a bridge"])
    assert single.ids[0][0] == 2 and single.ids[0][-1] == 3 and one.starts_with_mark
    assert list(single.second_starts) == [len(single.ids[0])]
    assert [int(token) for token in pair.ids[0] if token in (2, 3)] == [2, 3, 3]
    assert pair.ids[0][pair.second_starts[0] - 1] == 3
    other = PairEncoder(plain, max_tokens=40)
    ids = other.encode(["a boat"], ["a bridge"]).ids[0]
    assert (ids[0], ids[-1], int((ids == 0).sum()), other.starts_with_mark) == (0, 0, 3, False)


def test_the_longer_text_gives_way(bert):
    encoder = PairEncoder(bert, max_tokens=13)
    long, short = "boats " * 30, "a map"
    size = len(encoder.bare([short])[0].ids)
    cut = encoder.encode([long, short], [short, short])
    assert cut.cut == 1 and len(cut.ids[0]) == 13 and cut.longest > 30
    assert 13 - 3 - size == cut.second_starts[0] - 2  # all of the short one is there
    both = encoder.encode([long], [long])
    assert both.second_starts[0] - 2 == 5  # equal parts of the ten tokens
    assert encoder.encode([long]).cut == 1 and len(encoder.encode([long]).ids[0]) == 13
    with pytest.raises(ConfigError, match="too few for two texts"):
        PairEncoder(bert, max_tokens=4)


def question(text, start=None):
    return Question("q", "Who paints?", CONTEXT, ((text, CONTEXT.index(text) if start is None else start),))


def test_targets_lead_back_to_the_answer(bert):
    encoder = PairEncoder(bert, max_tokens=90)
    [window] = span_windows([question("a bridge")], encoder, SpanConfig()).windows
    assert window.text(CONTEXT, window.start, window.end) == "a bridge"
    assert (window.ids[window.second_start - 1], window.question) == (3, 0)
    [none] = span_windows([Question("q", "Who?", CONTEXT, ())], encoder, SpanConfig()).windows
    assert none.start == none.end == NOWHERE


def test_long_contexts_are_read_in_windows_that_cover_them(bert):
    encoder, config = PairEncoder(bert, max_tokens=20), SpanConfig(stride=9, question_tokens=4)
    found = span_windows([question("seven lamps")], encoder, config)
    tokens = len(encoder.bare([CONTEXT])[0].ids)
    assert (found.split_contexts, found.cut_questions) == (1, int(len(encoder.bare(["Who paints?"])[0].ids) > 4))
    assert all(len(window.ids) <= 20 for window in found.windows)
    seen = {int(first) for window in found.windows for first in window.offsets[:, 0]}
    assert len(seen) == tokens  # every token of the context in some window
    holding = [window for window in found.windows if window.start != NOWHERE]
    assert 0 < len(holding) < len(found.windows)
    assert {window.text(CONTEXT, window.start, window.end) for window in holding} == {"seven lamps"}
    with pytest.raises(ConfigError, match="for its context; raise max_tokens"):
        span_windows([question("a bridge")], PairEncoder(bert, max_tokens=12), config)


def test_squad_files(tmp_path):
    asked = [
        {"id": "1", "question": "Who?", "answers": [{"text": "Her sister", "answer_start": 34}]},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
        {"id": "3", "question": "What?", "answers": [{"text": "a bridge", "answer_start": 3}]},
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]}))
    questions = read_squad(path)
    assert [one.identifier for one in questions] == ["1", "2", "3"] and questions[1].answers == ()
    assert [one.is_misplaced for one in questions] == [False, False, True]
    for broken, said in (
        ("[]", "no list `data`"),
        ("{", "not JSON"),
        ('{"data": [{"paragraphs": [{"qas": []}, {"qas": [{"id": 1}]}]}]}', "is no SQuAD file"),
        ('{"data": [{"paragraphs": [{"context": "", "qas": [{"id": 1, "answers": []}]}]}]}', "neither an answer nor"),
    ):
        path.write_text(broken)
        with pytest.raises(DataError, match=said):
            read_squad(path)


def test_a_misplaced_answer_is_no_target(bert):
    [window] = span_windows([question("a bridge", start=2)], PairEncoder(bert, max_tokens=90), SpanConfig()).windows
    assert window.start == NOWHERE
    assert np.array_equal(window.offsets[0], [0, 3])
