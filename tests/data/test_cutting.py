"""Pieces give the tokens of the whole text, for every tokenizer of which `cuts_are_exact` says so."""

import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from energylm.data.encoding import WORD_PATTERNS, cut_exactly, cuts_are_exact

TEXT = "It's 1,234 apples...\nDON'T  stop\n\nno \r\n\tend  of it — 漢字 かな 5 x"


def byte_level(**changes):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = changes.get("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    if "normalizer" in changes:
        backend.normalizer = changes["normalizer"]
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([TEXT * 3, "a bb ccc  dd\n e 1 22 333 . .. ,\n\n" * 5], trainer)
    return backend


def split_then_bytes(*steps):
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, last])


EXACT = {
    "gpt2": {},
    "nfc": {"normalizer": normalizers.NFC()},
    "digits": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    },
} | {
    f"pattern {number}": {"pre_tokenizer": split_then_bytes(pre_tokenizers.Split(Regex(pattern), "isolated"))}
    for number, pattern in enumerate(sorted(WORD_PATTERNS))
}


def random_texts(count, *, seed):
    """Texts of words, marks, digits and every kind of white space in short runs."""
    chooser = random.Random(seed)
    atoms = ["a", "bb", "It's", "é", "e\u0301", "漢", "5", "22", ".", "...", "'s", "\u0301", "🙂", "\x1c", "\x85"]
    spaces = [" ", " ", " ", "\n", "\n", "  ", "\n\n", "\r\n", "\t", " \n", "\n ", "\xa0", "\u3000", ""]
    for _ in range(count):
        yield "".join(chooser.choice(atoms) + chooser.choice(spaces) for _ in range(chooser.randrange(60)))


def differing_texts(tokenizer, cut):
    """The texts whose pieces, encoded one by one, do not give the tokens of the whole."""
    texts = [TEXT * 3, *random_texts(400, seed=2)]
    return [
        text
        for text in texts
        if [i for piece in cut(text) for i in tokenizer.encode(piece).ids] != tokenizer.encode(text).ids
    ]


@pytest.mark.parametrize("kind", EXACT)
def test_pieces_give_the_same_tokens(kind):
    """Pieces of at least one character: every place where a cut is allowed is cut."""
    tokenizer = byte_level(**EXACT[kind])
    assert cuts_are_exact(tokenizer)
    assert sum(len(list(cut_exactly([text], piece_characters=1))) for text in random_texts(400, seed=2)) > 2000
    assert differing_texts(tokenizer, lambda text: cut_exactly([text], piece_characters=1)) == []


def test_the_check_catches_cuts_after_spaces_and_in_runs():
    def after_every_space(text):
        return [piece + " " for piece in text.split(" ")[:-1]] + [text.split(" ")[-1]]

    def at_blank_lines(text):
        parts = text.split("\n\n")
        return [part + "\n\n" for part in parts[:-1]] + [parts[-1]]

    assert differing_texts(byte_level(), after_every_space)
    assert differing_texts(byte_level(), at_blank_lines)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"pre_tokenizer": split_then_bytes(pre_tokenizers.Split(Regex(r"\s+"), "isolated"))},
        {"pre_tokenizer": split_then_bytes()},
        {"normalizer": normalizers.Strip()},
    ],
)
def test_other_tokenizers_are_not_cut(changes):
    assert not cuts_are_exact(byte_level(**changes))


def test_added_tokens_across_a_cut_forbid_it():
    tokenizer = byte_level()
    tokenizer.add_tokens(["  "])
    assert cuts_are_exact(tokenizer)
    tokenizer.add_tokens(["New York"])
    assert not cuts_are_exact(tokenizer)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_the_blocks_do_not_matter(block):
    text = (TEXT + " word" * 30) * 5
    blocks = [text[start : start + block] for start in range(0, len(text), block)]
    pieces = list(cut_exactly(blocks, piece_characters=20))
    assert "".join(pieces) == text
    assert pieces == list(cut_exactly([text], piece_characters=20))
    assert max(map(len, pieces)) < 60


def test_text_without_a_place_to_cut_stays_whole():
    assert list(cut_exactly(["ab" * 50, "cd" * 50], piece_characters=10)) == ["ab" * 50 + "cd" * 50]
    assert list(cut_exactly([])) == []
