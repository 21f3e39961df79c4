"""The false-positive rate is delivered over all texts and at each length, with scores that depend on the length.

Human scores are N(3, 1) for short texts (10 tokens) and N(0, 1) for long ones (40 tokens, a block of 32); one text in
twenty is short. A threshold for short texts from pieces of long ones lets 77 % of the short texts be called machine.
"""

import math

import numpy as np
import pytest

from energylm.data.text_blocks import EncodedText
from energylm.errors import DataError
from energylm.verbs.detect.calibrating import ScoredTexts, fit_detector

BLOCK, SHORT, LONG = 32, 10, 40
RATE = 0.05
SETS, TEXTS, NEW = 100, 1000, 1000


def texts_of(lengths, scores):
    shapes = {int(length): np.zeros(int(length), np.int32) for length in set(lengths)}
    return ScoredTexts(
        [EncodedText(shapes[int(length)], np.zeros((int(length), 2), np.int32)) for length in lengths], scores
    )


def human(rng, count, *, short=0.05):
    is_short = rng.random(count) < short
    return np.where(is_short, SHORT, LONG), rng.normal(np.where(is_short, 3.0, 0.0), 1.0)


def fitted(rng, lengths, scores, *, rate=RATE):
    machine = texts_of([SHORT] * 20 + [LONG] * 20, rng.normal(6, 1, 40))
    return fit_detector(texts_of(lengths, scores), machine, block_tokens=BLOCK, rate=rate, sources=["made up"])


@pytest.fixture(scope="module")
def earlier():
    """Lends its probabilities to calibrations on human texts alone, which are fitted in no time."""
    rng = np.random.default_rng(9)
    return fitted(rng, *human(rng, 200, short=0.5))


def threshold_only(earlier, lengths, scores):
    return fit_detector(
        texts_of(lengths, scores), texts_of([], np.zeros(0)), block_tokens=BLOCK, rate=RATE, sources=[], earlier=earlier
    )


def with_pieces(rng, lengths, scores):
    """The mistake: of every long text a piece of the short length, which scores as long texts do."""
    pieces = rng.normal(0.0, 1.0, int((lengths == LONG).sum()))
    return np.concatenate([lengths, np.full(len(pieces), SHORT)]), np.concatenate([scores, pieces])


def flagged_shares(earlier, calibration_texts, *, seed):
    """(share of all new human texts that are called machine, share of the short ones), over many calibration sets."""
    rng = np.random.default_rng(seed)
    flagged = of_short = short = 0
    for _ in range(SETS):
        calibration = threshold_only(earlier, *calibration_texts(rng, *human(rng, TEXTS)))
        lengths, scores = human(rng, NEW)
        thresholds = {length: calibration.at(length).threshold for length in (SHORT, LONG)}
        above = scores > np.array([thresholds[int(length)] for length in lengths])
        flagged, of_short = flagged + above.sum(), of_short + above[lengths == SHORT].sum()
        short += (lengths == SHORT).sum()
    return flagged / (SETS * NEW), of_short / short


def test_the_rate_is_delivered_over_all_texts_and_to_short_ones(earlier):
    """100,000 new texts, 5,000 short, after 100 calibrations. The rate of a calibration on n texts is Beta distributed
    with variance about α(1 − α)/(n + 2), to which the new texts add their own: for the short ones (n ≈ 50) a standard
    error of √(0.0475/52/100 + 0.0475/5000) = 0.0043, for all of them 0.0011. Four of them: false alarm 6 in 100,000."""
    everywhere, of_short = flagged_shares(earlier, lambda rng, lengths, scores: (lengths, scores), seed=0)
    assert everywhere <= RATE + 4 * 0.0011 and everywhere > 0.03
    assert of_short <= RATE + 4 * 0.0043 and of_short > 0.02


def test_pieces_of_long_texts_break_the_rate(earlier):
    """The mistake above: 0.05 · 0.77 + 0.95 · 0.05 = 8.6 % of all texts, 77 % of the short ones."""
    everywhere, of_short = flagged_shares(earlier, with_pieces, seed=0)
    assert everywhere > 0.08 and of_short > 0.7


@pytest.mark.parametrize(("short", "promise"), [(30, "length"), (7, "none")])
def test_what_is_promised_and_for_whom(short, promise):
    """By hand, rate 5 %, 100 long texts with scores 0 … 99: k = ⌈101 · 0.95⌉ = 96, threshold 95, rate 5/101. Of 30
    short ones k = ⌈31 · 0.95⌉ = 30, the largest, rate 1/31; 7 are too few, and all other spans are empty."""
    rng = np.random.default_rng(0)
    lengths = np.array([LONG] * 100 + [SHORT] * short)
    calibration = fitted(rng, lengths, np.concatenate([np.arange(100.0), 200 + np.arange(float(short))]))
    long_span, short_span = calibration.at(LONG), calibration.at(SHORT)
    assert (long_span.threshold, long_span.human, long_span.promise) == (95.0, 100, "length")
    assert long_span.false_positive_rate == pytest.approx(5 / 101) and long_span.false_positive_upper > 5 / 101
    assert (short_span.human, short_span.promise) == (short, promise)
    if promise == "length":
        assert short_span.threshold == 229.0 and short_span.false_positive_rate == pytest.approx(1 / 31)
    else:
        assert short_span.threshold is None and short_span.false_positive_rate is None
    assert [span.shortest for span in calibration.spans] == [8, 16, 32, 64, 128]
    assert calibration.at(20).promise == "none"  # a length between the two has the threshold of neither


def test_rare_lengths_are_calibrated_together():
    """12 short and 15 long texts: neither is enough for 5 % (19), 27 are. Their rate holds for both together."""
    rng = np.random.default_rng(0)
    calibration = fitted(rng, np.array([SHORT] * 12 + [LONG] * 15), np.arange(27.0))
    assert {span.promise for span in calibration.spans} == {"together"}
    assert {(span.threshold, span.human) for span in calibration.spans} == {(26.0, 27)}
    assert all(span.false_positive_upper is None for span in calibration.spans)
    assert calibration.promised(calibration.at(SHORT)).endswith("like the 27 calibration texts of all lengths together")


def test_the_rate_holds_for_rare_lengths_together(earlier):
    """60 texts, 30 % of which are short: as often as not too few (19) for a promise of their own at 5 %. Over 2,000
    calibrations with a new text each, at most 5 % are flagged: standard error 0.0049, false alarm 6 in 100,000."""
    rng = np.random.default_rng(1)
    flagged = 0
    for _ in range(2000):
        lengths, scores = human(rng, 60, short=0.3)
        calibration = threshold_only(earlier, lengths, scores)
        (length,), (score,) = human(rng, 1, short=0.3)
        threshold = calibration.at(int(length)).threshold
        flagged += threshold is not None and score > threshold
    assert flagged / 2000 <= RATE + 4 * math.sqrt(RATE * (1 - RATE) / 2000)


def test_probabilities_come_from_the_length_where_both_classes_have_texts():
    rng = np.random.default_rng(0)
    lengths, scores = human(rng, 400, short=0.5)
    calibration = fitted(rng, lengths, scores)
    assert calibration.at(SHORT).machine == calibration.at(LONG).machine == 20 and calibration.at(20).machine == 40
    middle = {length: -calibration.at(length).shift / calibration.at(length).scale for length in (SHORT, LONG)}
    assert 3 < middle[SHORT] < 6 and 0 < middle[LONG] < 6 and middle[LONG] < middle[SHORT] - 0.5


def test_too_few_texts_say_what_is_missing():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match=r"needs at least 19 human texts of 8 tokens or more, came 18"):
        fitted(rng, np.array([LONG] * 18 + [5] * 30), np.zeros(48))
    few = texts_of([LONG] * 9, np.ones(9))
    with pytest.raises(DataError, match="probabilities 10 of each class, came 9 machine texts"):
        fit_detector(texts_of([LONG] * 50, np.zeros(50)), few, block_tokens=BLOCK, rate=RATE, sources=[])
