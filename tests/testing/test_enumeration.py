import itertools

import pytest
import torch

from energylm.testing import enumerate_sequences, index_of, sequence_lengths
from energylm.testing.enumeration import all_histories, history_count, history_index


@pytest.mark.parametrize(("vocabulary_size", "length"), [(1, 3), (2, 0), (2, 4), (3, 3), (5, 2)])
def test_every_sequence_once_in_order(vocabulary_size, length):
    expected = list(itertools.product(range(vocabulary_size), repeat=length))
    assert [tuple(row) for row in enumerate_sequences(vocabulary_size, length).tolist()] == expected


def test_sequences_that_end_with_eos_by_hand():
    """V = 2, EOS = 1, at most 2 tokens: [1], [0, 1] and, cut at the cap, [0, 0]."""
    sequences = enumerate_sequences(2, 2, eos_token_id=1)
    assert sequences.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert sequence_lengths(sequences, eos_token_id=1).tolist() == [2, 2, 1]


@pytest.mark.parametrize("eos", [0, 2])
def test_terminated_sequences_are_counted_right(eos):
    """(V−1)^(t−1) sequences end with EOS at each t ≤ T, and (V−1)^T never end: for V = 3, T = 4: 1+2+4+8 + 16."""
    sequences = enumerate_sequences(3, 4, eos_token_id=eos)
    lengths = sequence_lengths(sequences, eos_token_id=eos)
    assert len(sequences) == 31 == len({tuple(row) for row in sequences.tolist()})
    ended = (sequences == eos).any(1)
    assert [int((ended & (lengths == t)).sum()) for t in (1, 2, 3, 4)] == [1, 2, 4, 8]


def test_lengths_without_eos_are_full():
    assert sequence_lengths(torch.zeros(2, 3, dtype=torch.int64), eos_token_id=None).tolist() == [3, 3]


def test_index_of_inverts_the_enumeration_and_refuses_strangers():
    universe = enumerate_sequences(3, 4, eos_token_id=1)[torch.randperm(31, generator=torch.Generator().manual_seed(0))]
    assert index_of(universe, universe).tolist() == list(range(31))
    with pytest.raises(ValueError, match=r"1 of 2 sequences are outside the universe, e\.g\. \[1, 0, 0, 0\]"):
        index_of(torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]), universe)
    with pytest.raises(ValueError, match="outside"):  # a token above the vocabulary must not alias another sequence
        index_of(torch.tensor([[0, 0, 0, 3]]), universe)


def test_history_index_counts_all_histories_in_order():
    histories = all_histories(3, 3)
    assert len(histories) == history_count(3, 3) == 1 + 3 + 9 + 27
    padded = torch.tensor([[*history, *[2] * (3 - len(history))] for history in histories])
    lengths = torch.tensor([len(history) for history in histories])
    assert history_index(padded, lengths, 3).tolist() == list(range(40))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: enumerate_sequences(10, 10),
        lambda: enumerate_sequences(0, 1),
        lambda: enumerate_sequences(2, 2, eos_token_id=2),
        lambda: history_index(torch.tensor([[3]]), torch.tensor([1]), 3),
        lambda: history_index(torch.tensor([[0]]), torch.tensor([2]), 3),
        lambda: index_of(torch.tensor([[-1]]), torch.tensor([[0]])),
    ],
)
def test_misuse_is_refused(wrong):
    with pytest.raises(ValueError):
        wrong()
