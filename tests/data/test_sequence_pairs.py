"""Pairs of sequences in batches of like length, and tagged sentences: by hand, and what is refused."""

import numpy as np
import pytest

from energylm.data.sequence_pairs import LengthBatches, SequencePairs
from energylm.data.tagging import (
    Tagged,
    read_composite_tags,
    read_entities,
    refuse_unseen_tags,
    tag_names,
    word_tokenizer,
)
from energylm.errors import ConfigError, DataError


def test_padding_by_hand():
    pairs = SequencePairs([[1, 2, 3], [4]], [[7], [8, 9]])
    batch = pairs.gather(np.array([1, 0]), ignored=-100)
    assert batch["source_BS"].tolist() == [[4, 0, 0], [1, 2, 3]]
    assert batch["target_BT"].tolist() == [[8, 9], [7, -100]]
    assert batch["source_lengths_B"].tolist() == [1, 3] and batch["target_lengths_B"].tolist() == [2, 1]


def test_an_epoch_reads_each_pair_once_in_batches_of_like_length():
    lengths = np.random.default_rng(0).integers(1, 50, 103)
    order = LengthBatches(lengths, batch=10, seed=3)
    assert order.batches_an_epoch == 10
    first = [order.rows(step) for step in range(1, 11)]
    assert len(set(np.concatenate(first).tolist())) == 100
    spread = np.mean([np.ptp(lengths[rows]) for rows in first])
    assert spread < 12 < np.ptp(lengths)  # teeth: batches at random would spread over nearly all lengths
    assert [order.epoch(step) for step in (1, 10, 11)] == [0, 0, 1]
    means = [lengths[rows].mean() for rows in first]
    assert means != sorted(means)  # batches are shuffled


def test_the_order_is_a_function_of_seed_and_step():
    lengths = np.arange(1, 41)
    one, other = LengthBatches(lengths, batch=8, seed=3), LengthBatches(lengths, batch=8, seed=4)
    again = LengthBatches(lengths, batch=8, seed=3)
    again.rows(17)  # seeking ahead changes nothing
    assert all(np.array_equal(one.rows(step), again.rows(step)) for step in (1, 7, 12))
    assert not np.array_equal(one.rows(1), other.rows(1)) and not np.array_equal(one.rows(1), one.rows(6))


def test_fewer_pairs_than_a_batch_are_refused():
    with pytest.raises(ConfigError, match="global_batch is 4 but there are 3 sequences"):
        LengthBatches(np.array([1, 2, 3]), batch=4, seed=0)


SENTENCES = [Tagged(("Ada", "saw", "Ada"), ("B-PER", "O", "B-PER")), Tagged(("rain",), ("O",))]


def test_vocabularies_by_hand():
    tokenizer = word_tokenizer(SENTENCES, least_count=1)
    assert tokenizer.get_vocab() == {"<pad>": 0, "<unk>": 1, "Ada": 2, "rain": 3, "saw": 4}
    assert set(word_tokenizer(SENTENCES, least_count=2).get_vocab()) == {"<pad>", "<unk>", "Ada"}
    assert tag_names(SENTENCES) == ["B-PER", "O"]  # two of each: by the alphabet


def test_files_of_both_formats(tmp_path):
    (tmp_path / "e").write_text("-DOCSTART- -X- O O\n\nAda NNP I-NP I-PER\nran VBD I-VP O\n")
    assert read_entities(tmp_path / "e") == [Tagged(("Ada", "ran"), ("B-PER", "O"))]
    row = "1\tcan\t_\tAUX\tMD\tVerbForm=Fin\t0\troot\t_\t_\n"
    (tmp_path / "u").write_text(row)
    assert read_composite_tags(tmp_path / "u") == [Tagged(("can",), ("AUX/MD/VerbForm=Fin",))]
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="holds no sentence"):
        read_entities(tmp_path / "empty")


def test_mistakes_are_named():
    with pytest.raises(DataError, match="has 2 words but 1 tags"):
        Tagged(("a", "b"), ("O",))
    refuse_unseen_tags(SENTENCES, ["O", "B-PER"], path="test")
    with pytest.raises(DataError, match=r"test has 1 tags that the training file has not \(B-PER\)"):
        refuse_unseen_tags(SENTENCES, ["O"], path="test")
