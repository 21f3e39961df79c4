"""Training texts are found again after cuts and small changes; texts that only begin alike are not taken for them."""

import random

import numpy as np

from energylm.data.overlap import SHINGLE_WORDS, SeenTexts, sketch

CHOOSER = random.Random(0)
WORDS = [f"word{number}" for number in range(500)]


def text(words=160):
    return " ".join(CHOOSER.choices(WORDS, k=words))


def test_the_same_text_is_found_however_it_is_written():
    seen = SeenTexts.of([text() for _ in range(50)] + [(known := text())])
    changed = known.upper().replace(" ", "\n  ")
    assert seen.share(changed) == 1.0 and seen.has(changed)
    assert not any(seen.has(text()) for _ in range(200))


def test_a_cut_or_mended_text_is_found_a_shared_beginning_is_not():
    known = text(200)
    seen, words = SeenTexts.of([known]), known.split()
    assert seen.has(" ".join(words[40:140]))  # a piece of it
    assert seen.has(" ".join("other" if place % 40 == 39 else word for place, word in enumerate(words)))
    continued = " ".join(words[:30]) + " " + text(150)
    assert 0 < seen.share(continued) < 0.5 and not seen.has(continued)


def test_short_texts_are_found_when_equal():
    seen = SeenTexts.of(["a few words only"])
    assert seen.has("A few words only") and not seen.has("a few words") and not seen.has("") and not seen.has("  ")


def test_a_sketch_is_an_eighth_of_the_shingles():
    """10,000 shingles, each kept with probability 1/8: 1,250 ± 132 at four standard deviations."""
    hashes = sketch(text(10_000 + SHINGLE_WORDS - 1))
    assert abs(len(hashes) - 1250) < 4 * np.sqrt(10_000 * 7 / 64)
    assert (np.diff(hashes) > 0).all()


def test_order_of_words_matters():
    """The mistake it would miss: a bag of words, the same for every order."""
    words = text(40).split()
    assert not SeenTexts.of([" ".join(words)]).has(" ".join(reversed(words)))
