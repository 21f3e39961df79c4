"""Perturbed copies against copies made by hand, one change each, one position after the other."""

import torch

from energylm.verbs.detect.perturbing import replaced_at_every_position, swapped_at_every_position

TOKENS = torch.tensor([[5, 6, 7], [8, 8, 9]])


def test_replacements_by_hand():
    copies = replaced_at_every_position(TOKENS, 1)
    assert copies[0].tolist() == [[1, 6, 7], [5, 1, 7], [5, 6, 1]]
    assert copies[1].tolist() == [[1, 8, 9], [8, 1, 9], [8, 8, 1]]


def test_swaps_by_hand():
    copies = swapped_at_every_position(TOKENS)
    assert copies[0].tolist() == [[6, 5, 7], [5, 7, 6]]
    assert copies[1].tolist() == [[8, 8, 9], [8, 9, 8]]
    # Teeth: swaps that pile up, as a loop over one tensor would make them, are other texts.
    piled_up = [[6, 5, 7], [6, 7, 5]]
    assert copies[0].tolist() != piled_up


def test_long_texts_equal_a_loop():
    tokens_BT = torch.randint(0, 50, (3, 17), generator=torch.Generator().manual_seed(0))
    for text, (replaced, swapped) in enumerate(
        zip(replaced_at_every_position(tokens_BT, 99), swapped_at_every_position(tokens_BT), strict=True)
    ):
        for position in range(17):
            expected = tokens_BT[text].clone()
            expected[position] = 99
            assert torch.equal(replaced[position], expected)
        for position in range(16):
            expected = tokens_BT[text].tolist()
            expected[position], expected[position + 1] = expected[position + 1], expected[position]
            assert swapped[position].tolist() == expected


def test_a_text_of_one_token_has_nothing_to_swap():
    assert swapped_at_every_position(torch.tensor([[4]])).shape == (1, 0, 1)
    assert replaced_at_every_position(torch.tensor([[4]]), 2).tolist() == [[[2]]]
