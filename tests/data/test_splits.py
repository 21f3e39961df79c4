"""Splits: a document keeps its split whatever is added, duplicates stay together, fractions hold."""

import math

import pytest

from energylm.data.document import LEADING_CHARACTERS, split_of

TEXTS = [f"document number {n}" for n in range(4000)]


def by_content(texts):
    return [split_of(text, valid_fraction=0.1, test_fraction=0.2, seed=0) for text in texts]


def by_position(texts):
    """The deliberate mistake: every tenth document is validation, every fifth test."""
    return ["valid" if n % 10 == 0 else "test" if n % 5 == 0 else "train" for n in range(len(texts))]


def moved_by_adding(assign):
    """How many of the old documents change their split when new ones are put between them."""
    before = dict(zip(TEXTS, assign(TEXTS), strict=True))
    more = [text for old in TEXTS for text in (f"new beside {old}", old)]
    after = dict(zip(more, assign(more), strict=True))
    return sum(before[text] != after[text] for text in TEXTS)


def test_adding_documents_moves_no_other():
    assert moved_by_adding(by_content) == 0


def test_the_check_catches_splitting_by_position():
    assert moved_by_adding(by_position) > 0


def test_fractions_hold():
    """Binomial counts within 5 standard deviations: a false alarm once in a million seeds; the seed is fixed."""
    splits = by_content(TEXTS)
    for split, share in (("train", 0.7), ("valid", 0.1), ("test", 0.2)):
        deviation = math.sqrt(len(TEXTS) * share * (1 - share))
        assert abs(splits.count(split) - len(TEXTS) * share) < 5 * deviation


def test_a_larger_valid_fraction_leaves_the_test_split_alone():
    larger = [split_of(text, valid_fraction=0.5, test_fraction=0.2, seed=0) for text in TEXTS]
    pairs = list(zip(by_content(TEXTS), larger, strict=True))
    assert all((old == "test") == (new == "test") for old, new in pairs)
    assert any(old != new for old, new in pairs)


def test_another_seed_gives_other_splits():
    other = [split_of(text, valid_fraction=0.1, test_fraction=0.2, seed=1) for text in TEXTS]
    assert other != by_content(TEXTS)


@pytest.mark.parametrize(("fractions", "expected"), [((0, 0), "train"), ((1, 0), "valid"), ((0, 1), "test")])
def test_fractions_of_zero_and_one_are_exact(fractions, expected):
    valid, test = fractions
    assert {split_of(text, valid_fraction=valid, test_fraction=test, seed=0) for text in TEXTS} == {expected}


def test_only_the_beginning_of_a_long_document_counts():
    start = "x" * LEADING_CHARACTERS
    assert (
        len({split_of(start + end, valid_fraction=0.3, test_fraction=0.3, seed=0) for end in map(str, range(50))}) == 1
    )
