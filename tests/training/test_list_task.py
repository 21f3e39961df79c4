"""Energies on lists: folds that share no text, batches against enumeration, what is refused."""

from collections import Counter
from itertools import permutations
from random import Random

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from energylm.errors import DataError
from energylm.objectives.list_losses import expected_error
from energylm.testing import assert_same_distribution
from energylm.training import list_task
from energylm.training.list_task import (
    CostedList,
    ListTask,
    PrefixTrees,
    TaughtListTask,
    TaughtWords,
    TokenEnergies,
    WholeTexts,
    chosen_excess,
    list_folds,
)
from energylm.training.task import Share

LISTS = [
    CostedList(("a b", "a c", "b"), (-1.0, -1.5, -2.0), (2.0, 0.0, 1.0)),
    CostedList(("c", "d"), (-0.5, -0.6), (1.0, 0.0)),
    CostedList(("a", "b"), (-0.5, -0.6), (1.0, 1.0)),  # teaches nothing
]
WORTH = {"a": 0.5, "b": -0.25, "c": 1.0, "d": 0.125}


class Table(torch.nn.Module):
    """An energy a letter, added up."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Parameter(torch.tensor([0.0, *WORTH.values()], dtype=torch.float64))

    def forward(self, tokens_BT, lengths_B):
        real = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
        return (self.letters[tokens_BT] * real).sum(-1)


def encode(texts):
    rows = [torch.tensor([1 + list(WORTH).index(word) for word in text.split()]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def task(lists=LISTS, valid=(), batch=2, **options):
    return ListTask(
        Table(),
        lists,
        valid,
        objective=expected_error,
        reader=WholeTexts(encode),
        seed=0,
        global_batch=batch,
        save_model=None,
        **options,
    )


FIVE = CostedList(
    texts=("a", "b", "c", "d", "a b"),
    base=(5.0, 4.0, 3.0, 2.0, 1.0),
    costs=(0.0, 1.0, 0.0, 2.0, 3.0),
    context="z",
    taught=tuple((float(number),) for number in range(5)),
)


def test_some_hypotheses_have_a_best_and_a_worse_one():
    """3,000 draws of three of five, two of which are best, against all orders. Teeth: any three miss the best at times,
    and are all as likely."""
    counts = Counter()
    for number in range(3000):
        some = FIVE.some(3, Random(number))
        rows = [FIVE.texts.index(text) for text in some.texts]
        assert rows == sorted(rows) and len(rows) == 3 and min(some.costs) == 0 < max(some.costs)
        for name in ("base", "costs", "taught"):
            assert getattr(some, name) == tuple(getattr(FIVE, name)[row] for row in rows)
        counts.update(rows)
    drawn, law = torch.tensor([counts[row] for row in range(5)]), torch.tensor(some_law(FIVE.costs, 3)) / 3
    assert_same_distribution(drawn, law, false_alarm=1e-6)
    with pytest.raises(AssertionError):
        assert_same_distribution(drawn, torch.full((5,), 0.2), false_alarm=1e-6)
    assert any(min(Random(number).sample(FIVE.costs, 3)) > 0 for number in range(100))
    assert FIVE.some(5, Random(0)) is FIVE.some(None, Random(0)) is FIVE


def some_law(costs, count):
    """P of each hypothesis to be among them, over all orders: the first best and the first worse one, then others."""
    orders = list(permutations(range(len(costs))))
    law = [0.0] * len(costs)
    for order in orders:
        best = next(index for index in order if costs[index] == min(costs))
        worse = next(index for index in order if costs[index] > min(costs))
        for index in list(dict.fromkeys([best, worse, *order]))[:count]:
            law[index] += 1 / len(orders)
    return law


def test_hypotheses_are_drawn_anew_in_each_epoch():
    """By seed, epoch and list, so that a run that goes on sees the same. Teeth: all of them would be one batch."""

    def costs_of_steps(hypotheses):
        learns = task([FIVE, LISTS[1]], hypotheses=hypotheses)
        return [learns.batch(step, range(2))["cost_UH"].sum().item() for step in range(1, 9)]

    assert costs_of_steps(2) == costs_of_steps(2) and len(set(costs_of_steps(2))) > 1 == len(set(costs_of_steps(None)))


def test_folds_are_runs_of_neighbours_and_cover_every_list_once():
    folds = list_folds([f"text {number}" for number in range(10)], 3)
    assert [fold.tolist() for fold in folds] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for wrong in (1, 11):
        with pytest.raises(DataError, match="cannot make"):
            list_folds(["x"] * 10, wrong)


def test_equal_references_never_stand_in_two_folds():
    """The leak of a file that is given twice, or of a sentence that is read twice: 4 copies of each text."""
    references = [f"text {number % 5}" for number in range(20)]
    references[7] = "TEXT   2"  # written otherwise, the same all the same
    folds = list_folds(references, 4)
    seen = [{" ".join(references[index].split()).casefold() for index in fold} for fold in folds]
    assert not any(first & second for number, first in enumerate(seen) for second in seen[number + 1 :])
    plain = np.array_split(np.arange(20), 4)  # teeth: the usual cut shares them all
    assert set(np.array(references)[plain[0]]) & set(np.array(references)[plain[1]])


def test_a_batch_by_enumeration():
    """Each list by itself: energies 0.25, 1.5, −0.25 and 1, 0.125; posteriors of f − E; errors above the oracle's."""
    learner = task()
    assert len(learner.train) == 2
    batch = learner.batch(1, range(2))
    sums = learner.loss(learner.model, batch)
    expected = 0.0
    for each in LISTS[:2]:
        score = [f - sum(WORTH[word] for word in text.split()) for f, text in zip(each.base, each.texts, strict=True)]
        weight = np.exp(score) / np.exp(score).sum()
        expected += float(weight @ (np.array(each.costs) - min(each.costs)))
    assert sums.losses["loss"].item() == pytest.approx(expected, abs=1e-6)
    assert learner.counts(batch) == {"loss": 2.0} and learner.tokens(batch) == 5 + 2
    pieces = [learner.loss(learner.model, learner.batch(1, range(row, row + 1))).losses["loss"] for row in range(2)]
    assert sum(pieces).item() == pytest.approx(expected, abs=1e-6)  # however the batch is cut


def test_excess_counts_what_is_chosen():
    base, cost = torch.tensor([[-1.0, -1.5, -torch.inf]]), torch.tensor([[3.0, 1.0, 0.0]])
    assert chosen_excess(base, torch.tensor([[0.0, 0.0, -9.0]]), cost).tolist() == [2.0]  # absent: not the oracle
    assert chosen_excess(base, torch.tensor([[1.0, 0.0, 0.0]]), cost).tolist() == [0.0]


def test_validation_reads_its_own_lists():
    learner = task(valid=LISTS[1:], batch=1)
    values = learner.validate(learner.model, Share())
    assert values["excess"] == (0.0, 1)  # −0.6 − 0.125 beats −0.5 − 1: the right one
    assert task().validate(learner.model, Share()) == {}


def test_lists_of_equals_are_refused():
    with pytest.raises(DataError, match="0 of 3 lists have a hypothesis that is better"):
        task(lists=[LISTS[2]] * 3)


LETTERS = {"a": 1, "b": 2, "c": 3, "d": 4}


def encode_after(context, text):
    ids = [LETTERS[word] for word in f"{context} {text}".split()]
    return ids, len(context.split())


def causal():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=5, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
        network = GPT2LMHeadModel(config).double().eval()
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.5)
    return network


@pytest.mark.parametrize("mistake", [None, "context counted", "trees mixed up"])
def test_likelihoods_over_trees_are_those_of_single_texts(mistake):
    """Energies and gradients of two lists, one after a context, against a pass over each text by itself."""
    heard = [CostedList(("a b c", "a c", "b"), (-1.0, -1.5, -2.0), (2.0, 0.0, 1.0), context="d a"), LISTS[1]]
    reader = PrefixTrees(encode_after, start_token_id=0, weight=0.7)
    read = heard[::-1] if mistake == "trees mixed up" else heard
    network = causal()
    energy_S = reader.energies(network, batch := reader.read(read))
    assert reader.tokens(batch) == len({"", "d", "d a", "d a a", "d a a b"}) + 1  # the last of a text is not read
    expected = []
    for each in heard:
        for text in each.texts:
            ids, given = encode_after(each.context, text)
            log_prob_TV = network(torch.tensor([[0, *ids]])).logits[0].log_softmax(-1)
            values = [log_prob_TV[position, token] for position, token in enumerate(ids)]
            expected.append(-0.7 * sum(values[0 if mistake == "context counted" else given :]))
    expected_S = torch.stack(expected)
    assert torch.allclose(energy_S, expected_S, rtol=0, atol=1e-10) == (mistake is None)
    weight = network.transformer.h[0].mlp.c_fc.weight
    ours, plain = (torch.autograd.grad(energies[:3].prod(), weight)[0] for energies in (energy_S, expected_S))
    assert torch.allclose(ours, plain, rtol=0, atol=1e-9) == (mistake is None)


class TokenTable(torch.nn.Module):
    """An energy a token; frames are token 5."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Parameter(torch.tensor([0.0, *WORTH.values(), 7.0]))

    def forward(self, tokens_BT, lengths_B):
        real = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
        return self.letters[tokens_BT] * real


def encode_words(text):
    """Letters are tokens, words are what white space parts."""
    pairs = [(LETTERS[letter], word) for word, letters in enumerate(text.split()) for letter in letters]
    return [token for token, _ in pairs], [word for _, word in pairs]


def framed(tokens_BT, lengths_B):
    wide = torch.nn.functional.pad(tokens_BT, (1, 1))
    wide[:, 0] = 5
    return wide.scatter(1, lengths_B[:, None] + 1, 5), lengths_B + 2


@pytest.mark.parametrize("mistake", [None, "frame counted", "texts in the order they are read", "padding counted"])
@pytest.mark.parametrize("tokens_at_once", [4, 4096])
def test_energies_of_tokens_by_loops(mistake, tokens_at_once, monkeypatch):
    """Texts of a list are read by length, and however few at once: each energy is that of the text's own letters."""
    monkeypatch.setattr(list_task, "TOKENS_AT_ONCE", tokens_at_once)
    reader, model = TokenEnergies(encode_words, framed), TokenTable()
    model.letters.data[0] = 3.0  # padding
    batch = reader.read(TAUGHT)
    if mistake == "frame counted":
        batch["word_ST"] = torch.ones_like(batch["word_ST"])
    if mistake == "texts in the order they are read":
        monkeypatch.setattr(list_task, "in_order", lambda parts: torch.cat([values for _, values in parts]))
    if mistake == "padding counted":
        batch["lengths_S"] = torch.full_like(batch["lengths_S"], batch["tokens_ST"].shape[1])
        batch["word_ST"] = (batch["tokens_ST"] != 5).long()
    by_text = [sum(WORTH[letter] for letter in text.replace(" ", "")) for each in TAUGHT for text in each.texts]
    energy_S = reader.energies(model, batch)
    assert (energy_S.tolist() == pytest.approx(by_text)) == (mistake is None)
    if mistake is None:
        assert reader.tokens(batch) == 12 + 2 * 5
        gradient = torch.autograd.grad(energy_S.sum(), model.letters)[0]  # how often each letter stands there
        assert gradient.tolist() == ["".join(text for each in TAUGHT for text in each.texts).count(a) for a in "#abcd#"]


TAUGHT = [
    CostedList(("ab c", "ab d", "b"), (-1.0, -1.5, -2.0), (0.0, 0.0, 0.0), taught=((-1.0, -9.0), (-1.5, 0.5), (0.25,))),
    CostedList(("c", "dd a c"), (-0.5, -0.6), (0.0, 0.0), taught=((-1.5,), (2.0, -0.5, -1.0))),
]


def huber(x, delta):
    return x * x / 2 if abs(x) <= delta else delta * (abs(x) - delta / 2)


def taught_by_loops():
    words, lists = 0.0, 0.0
    for each in TAUGHT:
        too_high = []
        for text, scores in zip(each.texts, each.taught, strict=True):
            apart = [-sum(WORTH[a] for a in word) - score for word, score in zip(text.split(), scores, strict=True)]
            words += sum(huber(x, 2.0) for x in apart)
            too_high.append(sum(apart))
        mean = sum(too_high) / len(too_high)
        lists += sum(huber(x - mean, 3.0) for x in too_high) / len(too_high)
    return words, lists


@pytest.mark.parametrize("mistake", [None, "frame counted", "no mean", "all tokens one word on"])
def test_a_taught_batch_by_loops(mistake, monkeypatch):
    reader = TaughtWords(encode_words, framed)
    learner = TaughtListTask(
        TokenTable(), TAUGHT, objective=None, reader=reader, seed=0, global_batch=2, save_model=None
    )
    batch = learner.batch(1, range(2))
    assert len(learner.train) == 2 and learner.counts(batch) == {"loss": 9.0, "list_loss": 2.0}
    assert learner.tokens(batch) == 12 + 2 * 5
    if mistake == "frame counted":
        batch["word_ST"] = batch["word_ST"].where(batch["tokens_ST"] != 5, 1)
    if mistake == "no mean":
        plain = torch.nn.functional.huber_loss
        shifted = lambda x, y, **how: plain(x, 0 * y if how["delta"] == 3.0 else y, **how)  # noqa: E731
        monkeypatch.setattr(list_task, "huber_loss", shifted)
    if mistake == "all tokens one word on":
        batch["word_ST"] = torch.where(batch["word_ST"] > 0, batch["word_ST"] % 9 + 1, 0)
    sums = learner.loss(learner.model, batch)
    found = [sums.losses["loss"].item(), sums.losses["list_loss"].item()]
    assert (found == pytest.approx(taught_by_loops(), abs=1e-4)) == (mistake is None)
    if mistake is None:
        sums.losses["loss"].backward()
        assert learner.model.letters.grad[5] == 0 and learner.model.letters.grad[1:5].abs().min() > 0
        learner.valid = TAUGHT
        assert learner.validate(learner.model, Share())["loss"] == pytest.approx((found[0], 9.0))
