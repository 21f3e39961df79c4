"""Hard searches against enumeration, on random models, in batches of unequal lengths."""

import pytest
import torch
from torch.testing import assert_close

from energylm.search.beam import beam_search, follow, greedy_search

VOCABULARY = 3


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def ranked(toy, model, source_S, length, *, eos, locally_normalized=True, exponent=0.0):
    scored = [
        (toy.exact_scores(model, source_S, each, locally_normalized=locally_normalized) / len(each) ** exponent, each)
        for each in toy.sequences(VOCABULARY, length, eos=eos)
    ]
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("locally_normalized", [True, False])
@pytest.mark.parametrize(("attention", "eos"), [("fixed", None), ("learned", None), ("learned", 0)])
def test_a_beam_that_holds_everything_is_enumeration(toy, attention, eos, locally_normalized):
    """V = 3 and at most 4 symbols: 81 sequences, or with EOS 31; the beam ranks all of them as brute force does."""
    model = toy.network(vocabulary=VOCABULARY, attention=attention, eos=eos)
    source_BS, lengths_B = toy.sources(4, 2, 3)
    beam = beam_search(
        model.stepper(source_BS, lengths_B),
        beam=81,
        lengths_B=lengths_B,
        eos_token_id=eos,
        locally_normalized=locally_normalized,
    )
    for row, length in enumerate(lengths_B.tolist()):
        expected = ranked(toy, model, source_BS[row, :length], length, eos=eos, locally_normalized=locally_normalized)
        alive = beam.scores_BK[row].isfinite()
        assert int(alive.sum()) == len(expected)
        found = [
            (float(score), tuple(tokens[:end].tolist()))
            for score, tokens, end in zip(
                beam.scores_BK[row][alive], beam.tokens_BKT[row][alive], beam.lengths_BK[row][alive], strict=True
            )
        ]
        assert [each for _, each in found] == [each for _, each in expected]
        assert_close([score for score, _ in found], [score for score, _ in expected], atol=1e-10, rtol=0)


def test_lengths_can_be_normalized_in_the_ranking(toy):
    model = toy.network(vocabulary=VOCABULARY, attention="learned", eos=0, seed=2)
    source_BS, lengths_B = toy.sources(4)
    options = {"beam": 31, "lengths_B": lengths_B, "eos_token_id": 0}
    plain = beam_search(model.stepper(source_BS, lengths_B), **options)
    mean = beam_search(model.stepper(source_BS, lengths_B), **options, length_exponent=1.0)
    best = [tuple(b.tokens_BKT[0, 0, : b.lengths_BK[0, 0]].tolist()) for b in (plain, mean)]
    assert best == [ranked(toy, model, source_BS[0], 4, eos=0, exponent=e)[0][1] for e in (0.0, 1.0)]
    assert best[0] != best[1]  # otherwise this model would prove nothing


def test_raw_scores_that_are_log_softmaxed_already_give_the_local_beam(toy):
    """Local normalisation of the model's output, or in the search: the same numbers."""
    model = toy.network(vocabulary=5, attention="learned", eos=0)

    class Normalized:
        def __init__(self, stepper):
            self.stepper, self.embedding_VE, self.start = stepper, stepper.embedding_VE, stepper.start

        def step(self, state, inputs_BKE, *, position):
            state, scores = self.stepper.step(state, inputs_BKE, position=position)
            return state, scores.log_softmax(-1)

    source_BS, lengths_B = toy.sources(5, 3, 4)
    stepper, options = model.stepper(source_BS, lengths_B), {"beam": 3, "lengths_B": lengths_B, "eos_token_id": 0}
    local = beam_search(stepper, **options)
    raw = beam_search(Normalized(stepper), **options, locally_normalized=False)
    unnormalized = beam_search(stepper, **options, locally_normalized=False)
    assert_close(raw.scores_BK, local.scores_BK, atol=1e-12, rtol=0)
    assert torch.equal(raw.tokens_BKT, local.tokens_BKT)
    assert not torch.allclose(unnormalized.scores_BK, local.scores_BK)  # teeth: raw scores are something else


@pytest.mark.parametrize(("attention", "eos"), [("fixed", None), ("learned", 2)])
def test_greedy_is_a_beam_of_one_and_stays_in_its_row(toy, attention, eos):
    model = toy.network(vocabulary=5, attention=attention, eos=eos, seed=4)
    source_BS, lengths_B = toy.sources(5, 1, 3, 4)
    tokens_BT, ends_B = greedy_search(model.stepper(source_BS, lengths_B), lengths_B=lengths_B, eos_token_id=eos)
    beam = beam_search(model.stepper(source_BS, lengths_B), beam=1, lengths_B=lengths_B, eos_token_id=eos)
    assert torch.equal(tokens_BT, beam.tokens_BKT[:, 0]) and torch.equal(ends_B, beam.lengths_BK[:, 0])
    for row, length in enumerate(lengths_B.tolist()):
        alone_BS, alone_B = source_BS[row : row + 1, :length], lengths_B[row : row + 1]
        alone, _ = greedy_search(model.stepper(alone_BS, alone_B), lengths_B=alone_B, eos_token_id=eos)
        assert torch.equal(alone[0], tokens_BT[row, :length])


def test_back_pointers_by_hand():
    """Two elements, three steps. Element 0 ends as: symbol 6, from element 1 of step 2 (symbol 5), from element 1 of
    step 1 (symbol 2). Element 1: symbol 7, from element 1 (5), from element 1 (2)."""
    parents = torch.tensor([[[0, 0], [0, 1], [1, 1]]])
    choices = torch.tensor([[[1, 2], [4, 5], [6, 7]]])
    assert follow(parents, choices).tolist() == [[[2, 5, 6], [2, 5, 7]]]
    without = torch.stack([choices[0, :, 0], choices[0, :, 1]])  # teeth: reading the columns ignores the pointers
    assert follow(parents, choices)[0].tolist() != without.tolist()
