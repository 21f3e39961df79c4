"""Phrases: occurrence by brute force, spellings, ends of sequences."""

import torch

from energylm.samplers.chains import LexicalConstraint, contains
from energylm.testing import enumerate_sequences


def test_occurrence_is_that_of_brute_force() -> None:
    tokens_RT = enumerate_sequences(3, 4)
    for length in (2, 3, 4):
        lengths_R = torch.full((len(tokens_RT),), length)
        for phrase in ([1], [0, 1], [2, 2, 1], [0, 1, 2, 0]):
            expected = [
                any(row[at : at + len(phrase)] == phrase for at in range(length - len(phrase) + 1))
                for row in tokens_RT.tolist()
            ]
            assert contains(tokens_RT, lengths_R, phrase).tolist() == expected


def test_one_spelling_is_enough_and_none_is_too_many() -> None:
    tokens_RT, lengths_R = torch.tensor([[7, 1, 0], [0, 2, 0], [3, 3, 9]]), torch.tensor([3, 3, 2])
    required = LexicalConstraint(required=(((1,), (2,)),))
    assert required(tokens_RT, lengths_R).tolist() == [True, True, False]
    forbidden = LexicalConstraint(forbidden=(((7, 1), (9,)),))
    assert forbidden(tokens_RT, lengths_R).tolist() == [False, True, True]  # the 9 stands past the end
