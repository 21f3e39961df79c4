"""Minimum risk against brute force: every pair by jiwer and sacrebleu, every expectation by loops."""

import math

import jiwer
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from energylm.search.minimum_risk import expected_costs, pairwise_costs

LISTS = [
    ["the cat sat on the mat", "the cat sat on a mat", "a cat sat at the mat", "the cap sat on the mat"],
    ["so be it", "so be", "", "so be it"],
]


def brute_cost(chosen, truth, utility):
    if utility == "wer":
        if not truth.split():
            return len(chosen.split())
        output = jiwer.process_words(truth, chosen)
        return output.substitutions + output.deletions + output.insertions
    metric = BLEU(effective_order=True) if utility == "bleu" else CHRF()
    return 1 - metric.sentence_score(chosen, [truth]).score / 100


@pytest.mark.parametrize("utility", ["wer", "bleu", "chrf"])
def test_costs_of_every_pair(utility):
    costs = pairwise_costs([*LISTS, ["alone"]], utility=utility)
    assert costs.shape == (3, 4, 4) and not costs[2, 1:].any()
    for row, texts in enumerate(LISTS):
        for h, chosen in enumerate(texts):
            for j, truth in enumerate(texts):
                assert costs[row, h, j] == pytest.approx(brute_cost(chosen, truth, utility)), (utility, chosen, truth)
    if utility == "bleu":  # which of the two is the truth matters: a matrix the wrong way round is another one
        assert not np.allclose(costs[1], costs[1].T)


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 1.0, 50.0])
def test_expectations_by_loops(sharpness):
    generator = np.random.default_rng(0)
    totals = generator.normal(0, 3, (2, 4))
    totals[1, 2] = -np.inf
    costs = pairwise_costs(LISTS, utility="wer")
    risks = expected_costs(totals, costs, sharpness=sharpness)
    for row in range(2):
        members = [h for h in range(4) if math.isfinite(totals[row, h])]
        weights = {h: math.exp(sharpness * totals[row, h]) for h in members}
        mass = sum(weights.values())
        for h in members:
            expected = sum(weights[j] / mass * costs[row, h, j] for j in members)
            assert risks[row, h] == pytest.approx(expected, abs=1e-12)
    assert risks[1, 2] == np.inf
    if sharpness == 50.0:
        likeliest = [texts[best] for texts, best in zip(LISTS, totals.argmax(1), strict=True)]
        assert [texts[best] for texts, best in zip(LISTS, risks.argmin(1), strict=True)] == likeliest


def test_the_middle_one_beats_the_likeliest():
    """Posterior 0.4, 0.3, 0.3; the second differs from both others in one word, the first from the third in two:
    risks 0.3·1 + 0.3·2 = 0.9, 0.4 + 0.3 = 0.7, 0.4·2 + 0.3 = 1.1. Taking the likeliest makes 0.9 errors."""
    texts = ["a b x", "a b y", "a c y"]
    risk = expected_costs(np.log([[0.4, 0.3, 0.3]]), pairwise_costs([texts], utility="wer"), sharpness=1.0)
    assert risk[0].tolist() == pytest.approx([0.9, 0.7, 1.1]) and risk.argmin() == 1


def test_more_words_than_letters():
    words = [f"w{number}" for number in range(3000)]
    costs = pairwise_costs([[" ".join(words), " ".join(words[:-1])]], utility="wer")
    assert costs[0].tolist() == [[0, 1], [1, 0]]
