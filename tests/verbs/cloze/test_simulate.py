"""`rerank simulate`: a recogniser's confusions counted by hand, rivals drawn by the law that is written down, and lists
of text that nobody has spoken as `rerank` and `rerank train` read them."""

import json
import math
from collections import Counter
from random import Random
from types import MappingProxyType

import numpy as np
import pytest
import torch

from energylm.cli.main import run as command_line
from energylm.data.nbest import Hypothesis, NBest, read_lists, recording_of
from energylm.errors import DataError
from energylm.testing import assert_same_distribution
from energylm.verbs.cloze.list_simulator import (
    TRIES,
    Confusions,
    ListSimulator,
    Misspellings,
    Neighbours,
    SpelledAlike,
    differences,
    frequency_class,
    in_random_order,
    spans,
)
from energylm.verbs.cloze.simulate import cut_texts


def nbest(*texts, best=0):
    return NBest("u", None, tuple(Hypothesis(text, 1.0 * (index == best)) for index, text in enumerate(texts)))


LISTS = [
    nbest("a cat sat", "a cap sat", "the cat sat", "a cat sat on"),
    nbest("so a cap", "so a cat", best=1),
    nbest("it is", "it is"),
]


PAIRS = [("cat", "kat"), ("cap", "kap"), ("tab", "taab"), ("cat", "cap"), ("cod", "cot"), ("cub", "ckb")]
KNOWN = {"cat", "cap", "tab", "cot", "cod", "kab"}


def pairs_confused(pairs, counts=MappingProxyType({})):
    """What lists of a word and what stands in its place say."""
    return Confusions.of([nbest(*pair) for pair in pairs], counts)


@pytest.mark.parametrize(
    ("rival", "expected"),
    [
        ("a b c d", []),
        ("a x c d", [((1, 2), ("x",))]),
        ("a x c y z", [((1, 2), ("x",)), ((3, 4), ("y", "z"))]),
        ("a c d", [((1, 2), ())]),
        ("e a b c d", [((0, 0), ("e",))]),
        ("a b x y", [((2, 4), ("x", "y"))]),  # neighbours are one place
        ("w x y z", []),  # longer than a place
    ],
)
def test_differences_of_a_rival(rival, expected):
    assert differences(("a", "b", "c", "d"), tuple(rival.split())) == expected


def test_confusions_are_counted():
    """Best are "a cat sat", "so a cat", "it is". Each of three rivals of the first changes a place of its own, the only
    rival of the second "cat". Eight words, with 5/3 changes in all: r = 5/24 of words that no text tells apart. Places
    without words: 4 + 4 + 3, of which one is open."""
    learnt = Confusions.of(LISTS)
    assert learnt.replaced == {
        ("cat",): {("cap",): 2},
        ("a",): {("the",): 1},
        (): {("on",): 1},
    }
    assert learnt.opened == pytest.approx({("cat",): 4 / 3, ("a",): 1 / 3, (): 1 / 3})
    assert +learnt.open_places == {3: 1, 1: 1}
    assert +learnt.changed_places == {1: 4} and learnt.lengths == {3: 2, 2: 1}
    r = 5 / 24
    assert learnt.rate(("cat",)) == pytest.approx((4 / 3 + r) / 3) and learnt.rate(("sat",)) == pytest.approx(r / 2)
    assert [learnt.rate(words) for words in (("zoo",), (), ("a", "cat"))] == pytest.approx([r, 1 / 33, 0])
    with pytest.raises(DataError, match="nothing to imitate"):
        Confusions.of(LISTS[2:])


def test_common_words_are_told_from_rare_ones():
    """By hand: "cat" stands in the texts five times, so its class has 4/3 changes of 2 words, that of words that are in
    no text 1/3 of 6. Teeth: without the counts a new word has the same rate, however common it is."""
    assert [frequency_class(count) for count in (0, 1, 3, 4, 15, 16, 10**6)] == [0, 1, 1, 2, 2, 3, 6]
    learnt, r = Confusions.of(LISTS, {"cat": 5}), 5 / 24
    assert learnt.rate(("zoo",)) == pytest.approx((1 / 3 + r) / 7)
    assert learnt.rate(("zoo",), 5) == pytest.approx((4 / 3 + r) / 3) and learnt.rate(("zoo",), 1) == pytest.approx(r)
    misspellings = Misspellings.of(pairs_confused(PAIRS, {"cat": 5}), known=KNOWN)
    share = 4 / 6
    assert misspellings.shares[2] == pytest.approx((1 + share) / 3)
    assert misspellings.shares[0] == pytest.approx((3 + share) / 5) and misspellings.shares[1] == pytest.approx(share)
    alone = Confusions.of(LISTS)
    assert (
        alone.rate(("zoo",), 0) == pytest.approx(alone.rates[0]) and learnt.rates[0] < alone.rates[0] < learnt.rates[2]
    )


def test_a_race_draws_by_rates():
    """The first of three: 3,000 races against the rates' shares. Teeth: equal shares do not fit."""
    rates = {(0, 1): 0.5, (1, 2): 0.1, (2, 3): 0.01}
    first = Counter(in_random_order(rates, Random(number))[0] for number in range(3000))
    counts = torch.tensor([first[span] for span in rates])
    shares = torch.tensor(list(rates.values())) / sum(rates.values())
    assert_same_distribution(counts, shares, false_alarm=1e-6)
    with pytest.raises(AssertionError):
        assert_same_distribution(counts, torch.full((3,), 1 / 3), false_alarm=1e-6)


COUNTS = Counter(cat=8, cap=3, cab=1, at=5, zoo=2)


def test_words_spelled_alike_have_their_probabilities():
    """c^ρ exp(−σ d), by hand for "cat". Teeth: without either part it is another number; no word replaces itself."""
    alike = SpelledAlike(COUNTS, commonness=0.5, distance_cost=2.0)
    distance = {"cap": 1, "cab": 1, "at": 1, "zoo": 3}
    weight = {word: COUNTS[word] ** 0.5 * math.exp(-2 * distance[word]) for word in distance}
    expected = [weight.get(word, 0.0) / sum(weight.values()) for word in alike.words]
    assert np.exp(alike.log_probs(["cat"])[0]).tolist() == pytest.approx(expected)
    for commonness, cost in ((0.0, 2.0), (0.5, 0.0)):
        other = SpelledAlike(COUNTS, commonness=commonness, distance_cost=cost)
        assert np.abs(np.exp(other.log_probs(["cat"])[0]) - expected).max() > 0.05


def test_the_channel_is_the_likeliest():
    """Of pairs drawn with known ρ and σ: any step away from what was fitted is less likely, the truth is near. Teeth:
    fitted to the same pairs the other way round it is another channel."""
    random = Random(0)
    counts = Counter(
        {"".join(random.choices("abcd", k=random.randint(2, 5))): random.randint(1, 500) for _ in range(60)}
    )
    truth = SpelledAlike(counts, commonness=0.4, distance_cost=1.5)
    pairs = [(word, truth.draw(word, random)) for word in random.choices(truth.words, k=400)]
    fitted = SpelledAlike(counts)
    fitted.fit(pairs, seed=0)

    def mean_log_prob(commonness, cost):
        log_prob_AV = SpelledAlike(counts, commonness=commonness, distance_cost=cost).log_probs([a for a, _ in pairs])
        return np.mean([row[truth.words.index(b)] for row, (_, b) in zip(log_prob_AV, pairs, strict=True)])

    best = mean_log_prob(fitted.commonness, fitted.distance_cost)
    for step in ((0.05, 0), (-0.05, 0), (0, 0.1), (0, -0.1)):
        assert mean_log_prob(fitted.commonness + step[0], fitted.distance_cost + step[1]) < best
    assert fitted.commonness == pytest.approx(0.4, abs=0.15) and fitted.distance_cost == pytest.approx(1.5, abs=0.3)
    turned = SpelledAlike(counts)
    turned.fit([(b, a) for a, b in pairs], seed=0)
    assert abs(turned.commonness - 0.4) > 0.15
    with pytest.raises(DataError, match="text of the same language"):
        fitted.fit([("cat", "unknown")], seed=0)


SENTENCES = ["a cat sat", "the cat sat", "a cap", "a cap", "at a zoo", "the cab"]


def test_words_go_with_their_neighbours():
    """By hand: 15 words, 6 beginnings and 6 ends; the pair "a cap" twice, "a" four times, "cap" twice."""
    neighbours = Neighbours(SENTENCES)
    total = 15 + 12 + 0.5 * 9  # words, ends, different ones
    cap = (2 + 2 * (2 + 0.5) / total) / (4 + 2)
    end = (2 + 2 * (12 + 0.5) / total) / (2 + 2)
    assert neighbours.prob(("a", "cap", "")) == pytest.approx(cap * end)
    assert neighbours.prob(("zoo", "new")) == pytest.approx(2 * 0.5 / total / (1 + 2)) and neighbours.prob(("a",)) == 1
    everything = ["", "a", "cat", "sat", "the", "cap", "at", "zoo", "cab"]
    assert sum(neighbours.prob(("a", word)) for word in everything) == pytest.approx(1.0)


def misspelling_law(misspellings, word, *, rate, known):
    """Of one place that is open, enumerated: what stays or is known is drawn again, at last the word itself."""
    letters, once = misspellings.letters, Counter()
    rates = {(start, end): rate(tuple(word[start:end])) for start, end in spans(len(word))}
    for (start, end), of_place in rates.items():
        seen = letters.replaced.get(tuple(word[start:end])) or Counter({tuple(word[start:end]): 1})
        for by, count in seen.items():
            once[word[:start] + "".join(by) + word[end:]] += of_place / sum(rates.values()) * count / seen.total()
    again = sum(once[text] for text in once if text in known)
    law = Counter({text: p * (1 - again**TRIES) / (1 - again) for text, p in once.items() if text not in known})
    law[word] += again**TRIES
    return law


def test_misspellings_follow_their_law():
    """Four of six pairs end in what is no word: "k" for a "c" twice and for a "u", and an "a" too many. 3,000 draws for
    "cab" against the law; "kab" is a word here and refused. Teeth: the laws of letters that are all alike, and without
    refusals, do not fit."""
    misspellings = Misspellings.of(pairs_confused(PAIRS), known=KNOWN)
    assert misspellings.share == 4 / 6 and misspellings.letters.replaced[("c",)] == {("k",): 2}
    rate = misspellings.letters.rate
    law = misspelling_law(misspellings, "cab", rate=rate, known=KNOWN | {"cab"})
    drawn = Counter(misspellings.draw("cab", Random(number)) for number in range(3000))
    assert set(drawn) <= set(law) and drawn["kab"] == 0
    counts = torch.tensor([drawn[text] for text in law])
    assert_same_distribution(counts, torch.tensor(list(law.values())), false_alarm=1e-6)
    wrong = [{"rate": lambda letters: float(rate(letters) > 0)}, {"known": {"cab"}}]
    for mistake in wrong:
        other = misspelling_law(misspellings, "cab", **{"rate": rate, "known": KNOWN | {"cab"}} | mistake)
        texts = sorted({*law, *other})
        with pytest.raises(AssertionError):
            assert_same_distribution(
                torch.tensor([drawn[text] for text in texts]),
                torch.tensor([other[text] for text in texts]),
                false_alarm=1e-6,
            )
    nothing = Misspellings.of(pairs_confused([("cat", "cap")]), known=KNOWN)
    assert nothing.share == 0 and nothing.letters is None


def rival_law(simulator, words, *, rate, weight, has_neighbours, count):
    """Of the only rival, where one place is open and changed: every place and every replacement, enumerated. What has
    no neighbours keeps its share, the others share theirs by weight."""
    learnt, misspellings, law = simulator.confusions, simulator.misspellings, Counter()
    candidates = list(spans(len(words)))
    rates = [
        rate(words[start:end], count(words[start])) if end - start == 1 else rate(words[start:end])
        for start, end in candidates
    ]
    for (start, end), of_place in zip(candidates, rates, strict=True):
        seen = learnt.replaced.get(words[start:end], Counter())
        replacements = Counter({by: count / seen.total() for by, count in seen.items()})
        if end - start == 1:
            known = seen.total() / (seen.total() + 1)
            share = misspellings.shares[frequency_class(count(words[start]))]
            replacements = Counter({by: known * p for by, p in replacements.items()})
            [log_prob_V] = simulator.spelled_alike.log_probs([words[start]])
            for word, log_prob in zip(simulator.spelled_alike.words, log_prob_V, strict=True):
                replacements[(word,)] += (1 - known) * (1 - share) * math.exp(log_prob)
            if share:
                refused = misspellings.known | {words[start]}
                letters = {"rate": misspellings.letters.rate, "known": refused}
                for word, p in misspelling_law(misspellings, words[start], **letters).items():
                    replacements[(word,)] += (1 - known) * share * p
        left, right = ("", *words)[start], (*words, "")[end]
        with_neighbours = {by: p for by, p in replacements.items() if all(map(has_neighbours, by))}
        weighed = {by: p * weight((left, *by, right)) for by, p in with_neighbours.items()}
        factor = sum(with_neighbours.values()) / (sum(weighed.values()) or 1.0)
        for by, p in replacements.items():
            kept = weighed[by] * factor if by in weighed else p
            law[" ".join((*words[:start], *by, *words[end:]))] += of_place / sum(rates) * kept
    return law


@pytest.mark.parametrize("misspelled", [False, True])
def test_rivals_follow_their_law(misspelled):
    """4,000 lists of "a cat" against the enumerated law; one false alarm in a million. Teeth: the laws of places that
    are all alike, of words that go with any others, of misspellings that need neighbours, and of words that are as
    common as their own document makes them do not fit."""
    lists = [
        nbest("a cat sat", "a cap sat"),
        nbest("so a cat", "so a cap"),
        nbest("a cat", "the cat"),
        nbest("it is it", "it is"),
    ]
    alike = SpelledAlike(COUNTS, commonness=0.5, distance_cost=1.0)
    confused = pairs_confused(PAIRS if misspelled else [("cat", "cap")], COUNTS)
    misspellings = Misspellings.of(confused, known=KNOWN | {"a", "the"})
    neighbours, own = Neighbours(SENTENCES), {"cat": 7}
    simulator = ListSimulator(Confusions.of(lists, COUNTS), alike, neighbours, misspellings, drawn=200)
    right = {
        "rate": simulator.confusions.rate,
        "weight": neighbours.prob,
        "has_neighbours": lambda word: word in neighbours.single,
        "count": lambda word: COUNTS[word] - own.get(word, 0),
    }
    law = rival_law(simulator, ("a", "cat"), **right)
    assert sum(law.values()) == pytest.approx(1.0)
    law.pop("a cat", None)  # no rival: drawn again
    drawn = Counter()
    for number in range(4000):
        made = simulator.simulate("a cat", hypotheses=2, random=Random(number), utterance="u", own=own)
        assert made.reference == made.hypotheses[0].text == "a cat" and len(made.hypotheses) == 2
        drawn[made.hypotheses[1].text] += 1
    assert set(drawn) <= set(law) and (drawn["a kat"] > 0) == misspelled
    counts = torch.tensor([drawn[text] for text in law])
    total = sum(law.values())
    assert_same_distribution(counts, torch.tensor([p / total for p in law.values()]), false_alarm=1e-6)
    mistakes = [{"rate": lambda *of_words: float(right["rate"](*of_words) > 0)}, {"weight": lambda words: 1.0}]
    of_misspellings = [{"has_neighbours": lambda word: True}, {"count": COUNTS.__getitem__}] if misspelled else []
    for wrong in [*mistakes, *of_misspellings]:
        other = rival_law(simulator, ("a", "cat"), **right | wrong)
        with pytest.raises(AssertionError):
            total = sum(other[text] for text in law)
            assert_same_distribution(counts, torch.tensor([other[text] / total for text in law]), false_alarm=1e-6)


def test_rivals_differ_and_keep_what_is_not_open():
    """All different, never empty, each within reach of the text; a text that has nothing to confuse stands alone."""
    simulator = ListSimulator.fitted(LISTS, ["a cat sat on the mat so a cap is it"], seed=0)
    made = simulator.simulate("so a cat sat", hypotheses=6, random=Random(3), utterance="u")
    texts = [each.text for each in made.hypotheses]
    assert len(set(texts)) == len(texts) > 2 and all(texts) and {each.score for each in made.hypotheses} == {0.0}
    for text in texts[1:]:
        assert 1 <= len(differences(("so", "a", "cat", "sat"), tuple(text.split()))) <= 3
    again = simulator.simulate("so a cat sat", hypotheses=6, random=Random(3), utterance="u")
    assert again == made and simulator.simulate("so a cat sat", hypotheses=6, random=Random(4), utterance="u") != made


TEXT = (
    "The boats are here. A clerk counts the boats! Mr. Smith mends a bridge, and the clerk sees 3 of them.\n\nSo it is."
)


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "lists.json"
    entries = {
        "u1": ["THE BOATS ARE HERE", "THE BOAT IS HERE", "THE GOATS ARE HERE", "A BOATS ARE HERE"],
        "u2": ["A CLERK COUNTS", "THE CLERK COUNTS", "A CLERK COUNT", "CLERK COUNTS"],
    }
    record = {
        name: {f"hyp_{rank}": {"score": -rank, "text": text} for rank, text in enumerate(texts, start=1)}
        for name, texts in entries.items()
    }
    path.write_text(json.dumps(record))
    return path


def simulate(lists, text, output, *more):
    command_line(["rerank", "simulate", str(lists), "--text", str(text), "-o", str(output), *more])


def test_lists_are_made_of_text(tmp_path, lists, capsys):
    """In the recogniser's case and words (no number can be read aloud), the text first, rivals that differ; the same
    again with the same seed, others with another. No list is taken for what was heard before another."""
    text = tmp_path / "book.txt"
    text.write_text(TEXT * 5)
    simulate(lists, text, tmp_path / "out", "--hypotheses", "4", "--json", str(tmp_path / "made.json"))
    said = capsys.readouterr().err
    assert "whose scores are all 0" in said and "the lists confuse 2 pairs of words only" in said
    made, told = read_lists(tmp_path / "out" / "lists.jsonl"), json.loads((tmp_path / "made.json").read_text())
    assert told["lists"] == told["texts"] == len(made) and told["learnt_from"] == 2 and told["confusions"] == 6
    assert told["hypotheses"] == sum(len(each.hypotheses) for each in made) and "path" not in told
    words = {word for each in made for word in each.reference.split()}
    assert words <= set("THE BOATS ARE HERE A CLERK COUNTS SO IT IS".split())  # Mr. Smith's sentence has a number
    assert {len(each.reference.split()) for each in made} <= {3, 4}
    for each in made:
        texts = [every.text for every in each.hypotheses]
        assert texts[0] == each.reference and len(set(texts)) == len(texts) <= 4
        assert all(every.score == 0 for every in each.hypotheses)
    assert len(set(map(recording_of, made))) == len(made) and any(len(each.hypotheses) == 4 for each in made)
    kept = (tmp_path / "out" / "lists.jsonl").read_bytes()
    simulate(lists, text, tmp_path / "again", "--hypotheses", "4")
    assert (tmp_path / "again" / "lists.jsonl").read_bytes() == kept
    simulate(lists, text, tmp_path / "other", "--hypotheses", "4", "--seed", "1")
    assert (tmp_path / "other" / "lists.jsonl").read_bytes() != kept


def test_a_list_is_the_same_whichever_others_are_made(tmp_path, lists):
    text = tmp_path / "book.txt"
    text.write_text(TEXT * 5)
    simulate(lists, text, tmp_path / "all")
    simulate(lists, text, tmp_path / "some", "--count", "3")
    every, some = read_lists(tmp_path / "all" / "lists.jsonl"), read_lists(tmp_path / "some" / "lists.jsonl")
    assert len(some) == 3 and all(each in every for each in some)


def test_lower_case_lists_get_lower_case_text(tmp_path, lists):
    lists.write_text(lists.read_text().lower())
    (tmp_path / "book.txt").write_text(TEXT)
    simulate(lists, tmp_path / "book.txt", tmp_path / "out")
    assert all(each.reference.islower() for each in read_lists(tmp_path / "out" / "lists.jsonl"))


def test_texts_begin_with_sentences(tmp_path):
    """Three words each: what is left of a sentence goes, what is too short is joined by the next."""
    texts = list(cut_texts(["a b c d", "e", "f g h i", "j k l", "m"], Counter({3: 1}), Random(0)))
    assert texts == [(0, "a b c"), (1, "e f g"), (3, "j k l")]


@pytest.mark.parametrize(
    ("text", "entries", "complaint"),
    [
        ("So it is.", {"u": ["A", "A"]}, "nothing to imitate"),
        ("3 + 4 = 7", None, "no sentence of words"),
        ("The clerk.", None, "too little for a list"),
        (None, None, "does not exist"),
    ],
)
def test_refusals(tmp_path, lists, text, entries, complaint):
    if entries:
        record = {
            name: {f"hyp_{rank}": {"score": -rank, "text": each} for rank, each in enumerate(texts, start=1)}
            for name, texts in entries.items()
        }
        lists.write_text(json.dumps(record))
    if text is not None:
        (tmp_path / "book.txt").write_text(text)
    with pytest.raises(DataError, match=complaint):  # exit 2
        simulate(lists, tmp_path / "book.txt", tmp_path / "out")
    assert not (tmp_path / "out" / "lists.jsonl").exists()
