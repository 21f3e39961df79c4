"""Real beside generated: same contexts, same path, same cap; and which windows are held out."""

import numpy as np
import pytest

from energylm.config.texts import NegativesSettings
from energylm.data.contrast import Contrast, by_window, pad, until_end
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.negatives_manifest import CorpusRecord, GeneratorRecord, NegativesManifest
from energylm.data.negatives_shards import NegativeRows, write_shard
from energylm.data.windows import Windows
from energylm.errors import DataError

LENGTH, K = 12, 3


@pytest.fixture
def made(corpus_folder, tmp_path):
    """A folder of negatives that say who they are: token 100·copy + position, of windows 7, 3 and 11."""

    def make(**values):
        corpus = Corpus.open(corpus_folder)
        settings = {"k": K, "length": LENGTH, "prefix_tokens": (8, 4), **values}
        config = NegativesSettings.checked(settings)
        window_B, cut_B = np.array([7, 3, 11]), np.array([8, 4, 8])
        length_BK = np.minimum(LENGTH - cut_B[:, None], np.array([[2, 4, 3]] * 3))
        tokens_BKT = np.broadcast_to(100 * np.arange(K)[:, None] + np.arange(8), (3, K, 8))
        tokens_BKT = np.where(np.arange(8) < length_BK[..., None], tokens_BKT, 0)
        rows = NegativeRows(window_B, cut_B, tokens_BKT, length_BK, -1.0 * length_BK, -1.0 * length_BK)
        manifest = NegativesManifest.planned(
            config,
            generator=GeneratorRecord(name="m", sha256="0"),
            corpus=CorpusRecord(
                name="c", identity=corpus.manifest.identity, end_token_id=corpus.manifest.tokenizer.end_token_id
            ),
            contexts=3,
        )
        manifest = manifest.with_shard(write_shard(tmp_path / "block-00000.parquet", rows, identity="x"))
        manifest.save(tmp_path, file="manifest.json")
        return Negatives.open(tmp_path), corpus

    return make


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_shard_is_one_line_and_never_read(made, tmp_path, damage):
    """A truncated Parquet file would otherwise end in pyarrow's traceback, a flipped byte in other continuations."""
    negatives, _ = made()
    content = bytearray((tmp_path / "block-00000.parquet").read_bytes())
    content[len(content) // 3] ^= 1
    (tmp_path / "block-00000.parquet").write_bytes(content[:-9] if damage == "truncated" else content)
    for read in (lambda: negatives.windows, lambda: negatives.rows(np.array([1])), negatives.verify):
        with pytest.raises(DataError, match=r"block-00000\.parquet has changed .*; run the same `energylm negatives`"):
            read()


def test_rows_survive_the_disk(made):
    negatives, _ = made()
    rows = negatives.rows(np.array([2, 0]))
    assert rows.window_B.tolist() == [11, 7] and rows.context_length_B.tolist() == [8, 8]
    assert rows.tokens_BKT[1, 2].tolist() == [200, 201, 202, 0] and rows.length_BK[1].tolist() == [2, 4, 3]


def test_a_context_comes_with_its_real_continuation_and_the_negatives_asked_for(made):
    negatives, corpus = made()
    windows = Windows(corpus, "train", length=LENGTH).gather(np.array([7, 3, 11]))
    contrast = Contrast(negatives, corpus)
    real0, first, real1, second = contrast.sequences(np.array([1, 0]), np.array([[1], [2]]))
    assert np.array_equal(real0, windows[1]) and np.array_equal(real1, windows[0])
    assert first == [*windows[1, :4], 100, 101, 102, 103]
    assert second == [*windows[0, :8], 200, 201, 202]


def test_prefixes_stand_before_their_contexts(made):
    negatives, corpus = made(side="prefix")
    windows = Windows(corpus, "train", length=LENGTH).gather(np.array([7]))
    real, generated = Contrast(negatives, corpus).sequences(np.array([0]), np.array([[2]]))
    assert np.array_equal(real, windows[0]) and generated == [200, 201, 202, *windows[0, 4:]]


def test_chosen_rows_are_counted_anew(made):
    negatives, corpus = made()
    some = Contrast(negatives, corpus, rows=np.array([2]))
    assert len(some) == 1
    assert np.array_equal(
        some.sequences(np.array([0]), np.array([[0]]))[1],
        Contrast(negatives, corpus).sequences(np.array([2]), np.array([[0]]))[1],
    )


def test_real_text_stops_where_a_writer_would(made):
    """End-of-text is kept, what follows is cut; from the right for a writer of prefixes."""
    target = np.array([5, 0, 7, 0, 9])
    assert until_end(target, 0, side="suffix").tolist() == [5, 0]
    assert until_end(target, 0, side="prefix").tolist() == [0, 9]
    assert until_end(target, 1, side="suffix") is target
    negatives, corpus = made(stop_at_eos=True, documents="packed")
    windows = Windows(corpus, "train", length=LENGTH)
    tokens = windows.gather(np.arange(len(windows)))
    ended = int(np.flatnonzero((tokens[:, 8:11] == corpus.end_token_id).any(1))[0])  # a window that ends a document
    place = 8 + int(np.flatnonzero(tokens[ended, 8:] == corpus.end_token_id)[0])
    contrast = Contrast(negatives, corpus)
    contrast._windows.gather = lambda indices: tokens[[ended] * len(indices)]
    assert contrast.sequences(np.array([0]), np.zeros((1, 0), int))[0] == tokens[ended, : place + 1].tolist()
    fixed = Contrast(made()[0], corpus)
    fixed._windows.gather = contrast._windows.gather
    assert len(fixed.sequences(np.array([0]), np.zeros((1, 0), int))[0]) == LENGTH  # the whole window otherwise


def test_another_corpus_is_refused(made):
    negatives, corpus = made()
    other = Corpus(corpus.folder, corpus.manifest.model_copy(update={"identity": "other"}))
    with pytest.raises(DataError, match="give the corpus they were made from"):
        Contrast(negatives, other)


def test_held_out_windows_depend_on_their_numbers_only():
    """Of 20,000 windows 0.3 are held out ± 5 standard deviations (0.0033 each: a false alarm in 10⁶)."""
    windows = np.arange(20_000)
    held = by_window(windows, fraction=0.3, purpose="test")
    assert abs(held.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 20_000)
    some = windows[::-7]
    assert np.array_equal(by_window(some, fraction=0.3, purpose="test"), held[some])
    other = by_window(windows, fraction=0.5, purpose="other")
    assert abs(other[held].mean() - 0.5) < 5 * np.sqrt(0.25 / held.sum())  # independent of the first choice


def test_pad():
    tokens, lengths = pad([[1, 2, 3], np.array([4])])
    assert tokens.tolist() == [[1, 2, 3], [4, 0, 0]] and lengths.tolist() == [3, 1]
