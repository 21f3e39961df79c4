"""Windows are slices: every one equals the slice that a loop over documents would take."""

import time

import numpy as np
import pytest

from energylm.data.corpus import Corpus, DocumentTable
from energylm.data.windows import Windows
from energylm.errors import DataError


class FakeStream:
    """A stream of tokens 0, 1, 2 … of any size without storage: the token is its own position."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def rows(self, starts, *, length):
        return starts[:, None] + np.arange(length)


class FakeCorpus:
    """Documents of given lengths, each followed by end-of-text."""

    folder = "fake"

    def __init__(self, lengths):
        lengths = np.asarray(lengths, dtype=np.int64)
        ends = np.cumsum(lengths + 1)
        self.table = DocumentTable(starts=ends - lengths - 1, lengths=lengths, text_bytes=lengths)
        self.total = int(ends[-1]) if len(ends) else 0

    def split_tokens(self, split):
        return FakeStream(self.total)

    def documents(self, split):
        return self.table


def brute_force(corpus, split, *, length, stride, documents):
    tokens = corpus.split_tokens(split)[:]
    if documents == "packed":
        return [tokens[s : s + length] for s in range(0, len(tokens) - length + 1, stride)]
    table = corpus.documents(split)
    texts = [tokens[s : s + n] for s, n in zip(table.starts, table.lengths, strict=True)]
    return [text[s : s + length] for text in texts for s in range(0, len(text) - length + 1, stride)]


@pytest.mark.parametrize("documents", ["packed", "within"])
@pytest.mark.parametrize(("length", "stride"), [(1, 1), (7, 3), (16, 16), (20, 5), (60, 90)])
def test_windows_equal_brute_force_slices(corpus_folder, documents, length, stride):
    corpus = Corpus.open(corpus_folder)
    expected = brute_force(corpus, "train", length=length, stride=stride, documents=documents)
    windows = Windows(corpus, "train", length=length, stride=stride, documents=documents)
    assert len(windows) == len(expected)
    order = np.random.default_rng(0).permutation(len(windows))
    gathered = windows.gather(order)
    assert gathered.dtype == np.int64
    np.testing.assert_array_equal(gathered, np.array(expected)[order])


def test_windows_within_documents_hold_no_end_of_text_and_packed_ones_do(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    inside = Windows(corpus, "train", length=20, documents="within")
    packed = Windows(corpus, "train", length=20)
    assert not (inside.gather(np.arange(len(inside))) == corpus.end_token_id).any()
    assert (packed.gather(np.arange(len(packed))) == corpus.end_token_id).any()


def test_by_hand():
    """Documents of 3, 5, 2 and 4 tokens start at 0, 4, 10, 13. Length 3, stride 2 fits 1, 2, 0 and 1 times."""
    windows = Windows(FakeCorpus([3, 5, 2, 4]), "train", length=3, stride=2, documents="within")
    assert len(windows) == 4
    assert windows.starts(np.arange(4)).tolist() == [0, 4, 6, 13]
    assert windows.document_numbers(np.arange(4)).tolist() == [0, 1, 1, 3]
    assert windows.short_documents == 1
    assert windows.gather(np.array([2]))[0].tolist() == [6, 7, 8]
    packed = Windows(FakeCorpus([3, 5, 2, 4]), "train", length=3)  # 18 tokens, stride = length
    assert len(packed) == 6 and packed.starts(np.array([5])).tolist() == [15]
    with pytest.raises(DataError, match="packed windows cross documents"):
        packed.document_numbers(np.array([0]))


def test_the_brute_force_check_catches_an_off_by_one(corpus_folder):
    """Teeth: counting the end-of-text token as part of a document gives other windows."""
    corpus = Corpus.open(corpus_folder)
    expected = brute_force(corpus, "train", length=7, stride=1, documents="within")
    table = corpus.documents("train")
    wrong = DocumentTable(starts=table.starts, lengths=table.lengths + 1, text_bytes=table.text_bytes)
    corpus.documents = lambda split: wrong
    assert len(Windows(corpus, "train", length=7, stride=1, documents="within")) != len(expected)


def test_a_window_longer_than_every_document_names_corpus_longest_and_cure():
    with pytest.raises(
        DataError, match=r"fake, split 'valid': no window of 9 .*4 documents has 5; .*at most 5, packed"
    ):
        Windows(FakeCorpus([3, 5, 2, 4]), "valid", length=9, documents="within")
    with pytest.raises(DataError, match=r"no window of 99 .*together have 18; .*at most 18"):
        Windows(FakeCorpus([3, 5, 2, 4]), "valid", length=99)
    with pytest.raises(DataError, match="longest of its 0 documents has 0"):
        Windows(FakeCorpus([]), "valid", length=1, documents="within")
    with pytest.raises(DataError, match="at least 1"):
        Windows(FakeCorpus([3]), "valid", length=2, stride=0)


@pytest.mark.parametrize("index", [-1, 4])
def test_numbers_outside_are_refused(index):
    with pytest.raises(IndexError, match=r"\[0, 4\)"):
        Windows(FakeCorpus([3, 5, 2, 4]), "train", length=3, stride=2, documents="within").gather(np.array([index]))


def test_a_capped_random_set_is_distinct_seeded_and_spread():
    windows = Windows(FakeCorpus([100_000]), "test", length=160, stride=1)
    chosen = windows.choose(1000, seed=3)
    assert len(set(chosen.tolist())) == 1000
    np.testing.assert_array_equal(chosen, windows.choose(1000, seed=3))
    np.testing.assert_array_equal(chosen[:10], windows.choose(10, seed=3))
    assert chosen.tolist() != windows.choose(1000, seed=4).tolist()
    # Mean of 1,000 uniform draws: 5 standard deviations, a false alarm once in two million seeds; the seed is fixed.
    assert abs(chosen.mean() / len(windows) - 0.5) < 5 * (1 / 12 / 1000) ** 0.5
    few = Windows(FakeCorpus([10]), "test", length=4, stride=1).choose(60_000, seed=0)
    assert sorted(few.tolist()) == list(range(8))


def test_fifty_million_windows_open_in_a_second_and_are_looked_up_by_the_million():
    corpus = FakeCorpus(np.full(1_000_000, 50))
    start = time.process_time()
    windows = Windows(corpus, "train", length=1, stride=1, documents="within")
    assert time.process_time() - start < 1
    assert len(windows) == 50_000_000
    indices = windows.choose(1_000_000, seed=0)
    start = time.process_time()
    windows.starts(indices)
    assert time.process_time() - start < 1
