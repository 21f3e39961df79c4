"""`rerank simulate`: lists of text that nobody has spoken, as `rerank` and `rerank train` read them."""

import json
from collections import Counter
from random import Random

import pytest

from energylm.cli.main import run as command_line
from energylm.data.nbest import read_lists, recording_of
from energylm.errors import DataError
from energylm.verbs.cloze.simulate import cut_texts

TEXT = (
    "The boats are here. A clerk counts the boats! Mr. Smith mends a bridge, and the clerk sees 3 of them.\n\nSo it is."
)


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "lists.json"
    entries = {
        "u1": ["THE BOATS ARE HERE", "THE BOAT IS HERE", "THE GOATS ARE HERE", "A BOATS ARE HERE"],
        "u2": ["A CLERK COUNTS", "THE CLERK COUNTS", "A CLERK COUNT", "CLERK COUNTS"],
    }
    record = {
        name: {f"hyp_{rank}": {"score": -rank, "text": text} for rank, text in enumerate(texts, start=1)}
        for name, texts in entries.items()
    }
    path.write_text(json.dumps(record))
    return path


def simulate(lists, text, output, *more):
    command_line(["rerank", "simulate", str(lists), "--text", str(text), "-o", str(output), *more])


def test_lists_are_made_of_text(tmp_path, lists, capsys):
    """In the recogniser's case and words (no number can be read aloud), the text first, rivals that differ; the same
    again with the same seed, others with another. No list is taken for what was heard before another."""
    text = tmp_path / "book.txt"
    text.write_text(TEXT * 5)
    simulate(lists, text, tmp_path / "out", "--hypotheses", "4", "--json", str(tmp_path / "made.json"))
    assert "whose scores are all 0" in capsys.readouterr().err
    made, told = read_lists(tmp_path / "out" / "lists.jsonl"), json.loads((tmp_path / "made.json").read_text())
    assert told["lists"] == told["texts"] == len(made) and told["learnt_from"] == 2 and told["confusions"] == 6
    assert told["hypotheses"] == sum(len(each.hypotheses) for each in made) and "path" not in told
    words = {word for each in made for word in each.reference.split()}
    assert words <= set("THE BOATS ARE HERE A CLERK COUNTS SO IT IS".split())  # Mr. Smith's sentence has a number
    assert {len(each.reference.split()) for each in made} <= {3, 4}
    for each in made:
        texts = [every.text for every in each.hypotheses]
        assert texts[0] == each.reference and len(set(texts)) == len(texts) <= 4
        assert all(every.score == 0 for every in each.hypotheses)
    assert len(set(map(recording_of, made))) == len(made) and any(len(each.hypotheses) == 4 for each in made)
    kept = (tmp_path / "out" / "lists.jsonl").read_bytes()
    simulate(lists, text, tmp_path / "again", "--hypotheses", "4")
    assert (tmp_path / "again" / "lists.jsonl").read_bytes() == kept
    simulate(lists, text, tmp_path / "other", "--hypotheses", "4", "--seed", "1")
    assert (tmp_path / "other" / "lists.jsonl").read_bytes() != kept


def test_a_list_is_the_same_whichever_others_are_made(tmp_path, lists):
    text = tmp_path / "book.txt"
    text.write_text(TEXT * 5)
    simulate(lists, text, tmp_path / "all")
    simulate(lists, text, tmp_path / "some", "--count", "3")
    every, some = read_lists(tmp_path / "all" / "lists.jsonl"), read_lists(tmp_path / "some" / "lists.jsonl")
    assert len(some) == 3 and all(each in every for each in some)


def test_lower_case_lists_get_lower_case_text(tmp_path, lists):
    lists.write_text(lists.read_text().lower())
    (tmp_path / "book.txt").write_text(TEXT)
    simulate(lists, tmp_path / "book.txt", tmp_path / "out")
    assert all(each.reference.islower() for each in read_lists(tmp_path / "out" / "lists.jsonl"))


def test_texts_begin_with_sentences(tmp_path):
    """Three words each: what is left of a sentence goes, what is too short is joined by the next."""
    texts = list(cut_texts(["a b c d", "e", "f g h i", "j k l", "m"], Counter({3: 1}), Random(0)))
    assert texts == ["a b c", "e f g", "j k l"]


@pytest.mark.parametrize(
    ("text", "entries", "complaint"),
    [
        ("So it is.", {"u": ["A", "A"]}, "nothing to imitate"),
        ("3 + 4 = 7", None, "no sentence of words"),
        (None, None, "does not exist"),
    ],
)
def test_refusals(tmp_path, lists, text, entries, complaint):
    if entries:
        record = {
            name: {f"hyp_{rank}": {"score": -rank, "text": each} for rank, each in enumerate(texts, start=1)}
            for name, texts in entries.items()
        }
        lists.write_text(json.dumps(record))
    if text is not None:
        (tmp_path / "book.txt").write_text(text)
    with pytest.raises(DataError, match=complaint):  # exit 2
        simulate(lists, tmp_path / "book.txt", tmp_path / "out")
    assert not (tmp_path / "out" / "lists.jsonl").exists()
