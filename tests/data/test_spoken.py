"""Written text becomes what a recogniser writes: sentences, words, spellings, and what is left out."""

import pytest

from energylm.data import sources
from energylm.data.sources import as_spoken, open_sources, spoken_sentences
from energylm.verbs import BuildCorpus
from energylm.verbs.corpus.build import plan_corpus

TEXT = """Mr. Hale met Mrs. J. Orr at St. Ives.  "It's late," he said. 'Go--now!' She didn't.

A heading without a stop

The café\nclosed. It cost 3 crowns. So be it"""
SENTENCES = [
    "MISTER HALE MET MISSUS J ORR AT SAINT IVES",
    "IT'S LATE HE SAID",
    "GO NOW",
    "SHE DIDN'T",
    "A HEADING WITHOUT A STOP",
    "THE CAFE CLOSED",
    "SO BE IT",
]


def test_sentences_of_a_text():
    assert list(spoken_sentences([TEXT])) == SENTENCES


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_where_pieces_are_cut_does_not_matter(size):
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    assert list(spoken_sentences(pieces)) == SENTENCES


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("the game 's role @-@ playing didn 't", "THE GAME'S ROLE PLAYING DIDN'T"),  # WikiText
        ("The dog’s naïve _friend_", "THE DOG'S NAIVE FRIEND"),
        (" = Title = ", ""),
        ("in 1850", ""),
        ("* * *", ""),
    ],
)
def test_words(written, spoken):
    assert as_spoken(written) == spoken


def test_a_spoken_corpus_is_another_corpus_and_a_written_one_is_what_it_was(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(TEXT, encoding="utf-8")
    settings = {"sources": (str(file),)}
    spoken, written = BuildCorpus(**settings, style="spoken"), BuildCorpus(**settings)
    documents = [document for source in open_sources(spoken.sources, spoken) for document in source.documents()]
    assert ["".join(document.pieces) for document in documents] == SENTENCES
    assert documents[1].name == "a.txt, sentence 2"
    plans = [plan_corpus(config, output=tmp_path / "corpus") for config in (spoken, written)]
    assert plans[0].identity != plans[1].identity
    assert plans[0].settings["style"] == "spoken" and "style" not in plans[1].settings


def test_a_dictated_corpus_keeps_documents_whole_and_joins_its_pieces_by_a_space(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text(TEXT, encoding="utf-8")
    dictated = BuildCorpus(sources=(str(file),), style="dictated")
    for characters in (1, 20, 1000):  # of a piece at least: a sentence each, some, all in one
        monkeypatch.setattr(sources, "LEADING_CHARACTERS", characters)
        (document,) = [
            document for source in open_sources(dictated.sources, dictated) for document in source.documents()
        ]
        pieces = list(document.pieces)
        assert all(len(piece) >= characters for piece in pieces[:-1])
        assert "".join(pieces).strip() == " ".join(SENTENCES).lower()
        assert document.name == "a.txt"
