"""Pseudo-log-likelihoods on a tabular masked model: by loops over positions, by packing, and the mistakes."""

import pytest
import torch
from torch.testing import assert_close

from energylm.estimators.pseudo_log_likelihood import token_pseudo_log_likelihoods
from energylm.testing import TabularMaskedModel

MODEL = TabularMaskedModel.random(3, 4, seed=0)
TOKENS_BT = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 0], [1, 0, 2, 0]])
LENGTHS_B = torch.tensor([4, 2, 3])
WORDS_BT = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0]])  # columns past the end mean nothing


def conditional(tokens, hidden, place):
    """log p(token at `place` | the tokens that are not hidden), by the table itself."""
    tokens_1T = torch.tensor([tokens])
    hidden_1T = torch.tensor([[position in hidden for position in range(len(tokens))]])
    logits = MODEL.masked_logits(tokens_1T, torch.tensor([len(tokens)]), hidden_1T)
    return float(logits[sorted(hidden).index(place)].log_softmax(-1)[tokens[place]])


def by_loops(*, within_words=False):
    result = torch.zeros(TOKENS_BT.shape, dtype=torch.float64)
    for row, length in enumerate(LENGTHS_B.tolist()):
        tokens, words = TOKENS_BT[row, :length].tolist(), WORDS_BT[row, :length].tolist()
        for place in range(length):
            hidden = {place}
            if within_words:
                hidden |= {later for later in range(place + 1, length) if words[later] == words[place]}
            result[row, place] = conditional(tokens, hidden, place)
    return result


def test_equals_the_product_of_one_at_a_time_conditionals():
    found = token_pseudo_log_likelihoods(MODEL, TOKENS_BT, LENGTHS_B)
    assert_close(found, by_loops(), atol=1e-12, rtol=0)
    assert found[1, 2:].tolist() == [0, 0]  # nothing is added up over padding


def test_within_words_hides_the_later_tokens_of_the_word():
    found = token_pseudo_log_likelihoods(MODEL, TOKENS_BT, LENGTHS_B, words_BT=WORDS_BT)
    assert_close(found, by_loops(within_words=True), atol=1e-12, rtol=0)
    alone = token_pseudo_log_likelihoods(MODEL, TOKENS_BT, LENGTHS_B)
    last_of_word = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]]).bool()
    assert_close(found[last_of_word], alone[last_of_word])  # the last token of a word hides nothing but itself
    assert not torch.isclose(found[0, :2], alone[0, :2]).any()


@pytest.mark.parametrize("tokens_a_call", [1, 5, 8, 1000])
@pytest.mark.parametrize("words_BT", [None, WORDS_BT])
def test_the_same_numbers_however_copies_are_packed(tokens_a_call, words_BT):
    found = token_pseudo_log_likelihoods(MODEL, TOKENS_BT, LENGTHS_B, words_BT=words_BT, tokens_a_call=tokens_a_call)
    assert_close(found, by_loops(within_words=words_BT is not None), atol=1e-12, rtol=0)


def test_nothing_hidden_is_noticed():
    """Teeth: a model that sees the token it is to guess gives other numbers."""

    class Seeing(TabularMaskedModel):
        def masked_logits(self, tokens_RT, lengths_R, hidden_RT, *, source_R=None):
            code_R = (tokens_RT * 4 ** torch.arange(tokens_RT.shape[1])).sum(1) % self.table.shape[2]
            rows_N, places_N = hidden_RT.nonzero(as_tuple=True)
            return self.table[0, places_N, code_R[rows_N]]

    leaky = Seeing(MODEL.table, vocabulary_size=3, length=4)
    gap = token_pseudo_log_likelihoods(leaky, TOKENS_BT, LENGTHS_B) - by_loops()
    assert gap.abs().max() > 0.5


def test_no_texts():
    empty = torch.zeros(0, 3, dtype=torch.int64)
    assert token_pseudo_log_likelihoods(MODEL, empty, torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
