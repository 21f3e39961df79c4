"""Attacks keep a text readable and are the same every time; reading undoes what can be undone, and nothing else."""

import random
from copy import copy

import numpy as np
import pytest

from energylm.config.texts import BlockConfig
from energylm.data import text_disguises
from energylm.data.text_blocks import BlockReader
from energylm.data.text_disguises import ATTACKS, LOOKALIKES, disguise, plain
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import ConfigError

TEXT = (
    'The quick fox and the lazy dog jumped over it. "Hello there," said Zoë: it is naïve — 5½ miles…  Two blanks '
    "after a sentence.\n    An indented line, JUST SO.\nXAVIER VISITS KYIV in 1999 or 2001. They knew where they were."
)
ORDINARY = {
    "English": TEXT,
    "Russian": "Старый мельник каждое утро считает лодки у причала, а его сестра чинит мост, о котором все забыли.",
    "Russian in English": "He said «спасибо» to Иван, а она — нет; it was a cat.",
    "Greek": "Ο παλιός μυλωνάς μετράει κάθε πρωί τις βάρκες και η αδελφή του φτιάχνει τη γέφυρα.",
    "symbols": "The area is πr², with β ≈ 0.5 and Δx < ½ m…",
    "Persian": "می\u200cخواهم",  # its zero-width character is spelling
    "emoji": "👨\u200d👩\u200d👧 at home",
    "Japanese": "古い粉屋は毎朝、桟橋のそばの舟を数える。",
    "German": "Müller zählt größere Straßen.",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_text_stays_as_it_is(name):
    reading = plain(ORDINARY[name])
    assert reading.text == ORDINARY[name] and reading.origins is None and reading.said == ""


@pytest.mark.parametrize("attack", ["homoglyphs", "zero-width"])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_disguises_of_characters_are_undone_wholly(attack, share):
    disguised = disguise(TEXT, attack, share=share)
    reading = plain(disguised)
    assert disguised != TEXT and reading.text == TEXT and reading.said
    pairs = zip(reading.origins.tolist(), TEXT, strict=True)
    assert all(disguised[origin] in (letter, LOOKALIKES.get(letter)) for origin, letter in pairs)


def test_compatibility_forms_and_blanks_by_hand():
    """Full width, a ligature (one character for two), a mathematical letter, a blank that does not break; three blanks
    inside a sentence, two after its end."""
    before = "\uff26ull \ufb01n \U0001d41a\u00a0b   c.  D"
    reading = plain(before)
    assert reading.text == "Full fin a b c.  D"
    assert reading.changes == {"unusual forms of characters": 4, "runs of blanks": 1}
    assert reading.said == "4 unusual forms of characters, 1 runs of blanks"
    assert [before[origin] for origin in reading.origins[5:8]] == ["\ufb01", "\ufb01", "n"]
    assert reading.origins.tolist() == [*range(5), 5, 5, 6, 7, 8, 9, 10, 11, *range(14, 19)]


def test_letters_of_another_alphabet_are_read_as_latin_only_where_they_pretend_to_be():
    """а, о and с alone are Russian words beside Russian, and disguised English ones where nothing else is Russian."""
    assert plain("\u0430 cat").text == "a cat"
    assert plain("\u0430 cat, спасибо").text == "\u0430 cat, спасибо"
    assert plain("\u0441\u0430t, спасибо").text == "cat, спасибо"  # one word of two alphabets is no word of either


def test_folding_every_letter_that_looks_latin_would_ruin_russian(monkeypatch):
    """The mistake that the share of real letters guards against."""
    monkeypatch.setattr(text_disguises, "REAL_SHARE", 1.0)
    assert plain("а она о нём и не спросит").text != "а она о нём и не спросит"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_repeatable_and_their_share_is_kept(attack):
    """A text alone decides with the seed, not its neighbours; nothing happens at share 0. Of n places a share p is
    hit: within 5 standard deviations for characters."""
    assert disguise(TEXT, attack, seed=1) == disguise(TEXT, attack, seed=1)
    assert disguise(TEXT, attack, share=0.0) == TEXT
    assert disguise(TEXT * 5, attack, seed=1) != disguise(TEXT * 5, attack, seed=2) or attack == "homoglyphs"
    letters = "ace" * 1000
    if attack in ("homoglyphs", "case"):
        hit = sum(a != b for a, b in zip(letters, disguise(letters, attack, share=0.2), strict=True))
    elif attack in ("zero-width", "whitespace"):
        hit = len(disguise(letters, attack, share=0.2)) - len(letters)
    else:
        return
    assert abs(hit / 3000 - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 3000)


def test_what_attacks_keep():
    """Misspellings keep the first and last letter of words, case the letters, swaps the words."""
    misspelt = disguise(TEXT, "misspellings", share=1.0).split()
    assert [(word[0], word[-1]) for word in misspelt] == [(word[0], word[-1]) for word in TEXT.split()]
    assert sum(a != b for a, b in zip(misspelt, TEXT.split(), strict=True)) > 10
    assert disguise(TEXT, "case", share=1.0).lower() == TEXT.lower()
    swapped = disguise("One came. Two went! Bread and wine? Four.", "swaps", share=1.0)
    assert swapped == "Two went! One came. Four. wine and Bread?"
    assert disguise(TEXT, "whitespace").replace(" ", "") == TEXT.replace(" ", "")
    with pytest.raises(ConfigError, match="no attack 'synonyms'; there are: homoglyphs, zero-width"):
        disguise(TEXT, "synonyms")


@pytest.fixture(scope="module")
def reader():
    chooser = random.Random(0)
    words = TEXT.split()
    texts = [" ".join(chooser.choices(words, k=50)) for _ in range(30)]
    return BlockReader(train_tokenizer(texts, vocabulary_size=300), BlockConfig(tokens=16), special_tokens=False)


def test_readers_see_through_disguises_and_keep_places_of_the_text_as_it_came(reader):
    disguised = disguise(disguise(TEXT, "homoglyphs"), "zero-width")
    honest, read = reader.encode([TEXT, disguised])
    assert read.ids.tolist() == honest.ids.tolist() and read.text == TEXT
    assert "invisible characters" in read.undone and "only look Latin" in read.undone and honest.undone == ""
    for part, text in ((honest.cut(3, 8), TEXT), (read.cut(3, 8), disguised)):
        first, last = part.offsets[0, 0], part.offsets[-1, 1]
        assert plain(text[first:last]).text.strip() == part.text.strip() == honest.cut(3, 8).text.strip()
    assert read.cut(3, 8).undone == read.undone
    assert [len(text) for text in reader.encode(["\u200b\u200b", ""])] == [0, 0]


def test_without_undoing_the_tokens_are_others(reader):
    """Teeth: the two readings above agree because of `plain`, not because the tokenizer is blind."""
    credulous = copy(reader)
    credulous.undoes = False
    honest, read = credulous.encode([TEXT, disguise(TEXT, "homoglyphs")])
    assert read.ids.tolist() != honest.ids.tolist() and read.undone == ""
