"""Perplexity: by hand, against the jackknife, by simulation, and with the mistakes people make."""

import math

import pytest
import torch

from energylm.errors import DataError, ModelError
from energylm.estimators.perplexity import perplexity


def estimate(log_prob, tokens, size=None):
    size = None if size is None else torch.tensor(size)
    return perplexity(torch.tensor(log_prob, dtype=torch.float64), torch.tensor(tokens), size, convention="test")


def test_by_hand():
    """Two sequences of 2 and 6 tokens with 4 ln 2 and 8 ln 2 nats: R = (4 + 8) ln 2 / 8 = 1.5 ln 2, so the
    perplexity is 2^1.5. Residuals: 4 − 3 = 1 and 8 − 9 = −1 (times ln 2); their squares sum to 2 ln² 2, B − 1 = 1, the
    mean length is 4: se(R)² = 2 ln² 2 / (2 · 16), se = ln 2 / 4. Bits per byte: 12 bits over 30 bytes."""
    ln2 = math.log(2)
    got = estimate([-4 * ln2, -8 * ln2], [2, 6], [10, 20])
    assert got.value == pytest.approx(2**1.5)
    assert got.nats_per_token == pytest.approx(1.5 * ln2)
    assert got.standard_error == pytest.approx(2**1.5 * ln2 / 4)
    assert got.bits_per_byte == pytest.approx(12 / 30)
    assert (got.sequences, got.tokens, got.bytes) == (2, 8, 30)
    # Teeth: a mean of the two perplexities, or of the two rates, is another number.
    assert got.value != pytest.approx((2**2 + 2 ** (4 / 3)) / 2)
    assert got.nats_per_token != pytest.approx((2 + 4 / 3) / 2 * ln2)


def simulated(generator, sequences):
    """Lengths 5 … 40; a sequence's rate wanders by sequence, so that its tokens are not independent."""
    tokens = torch.randint(5, 41, (sequences,), generator=generator)
    rate = 2 + 0.5 * torch.randn(sequences, generator=generator, dtype=torch.float64)
    return -rate * tokens, tokens


def test_standard_error_agrees_with_the_spread_of_repetitions():
    """2,000 data sets of 50 sequences: the root mean square of the stated errors against the true spread. The relative
    error of a standard deviation from 2,000 draws is 1/√4000 = 1.6 %; 8 % is five of them (false alarm below 1e-6)."""
    generator = torch.Generator().manual_seed(0)
    found = [perplexity(*simulated(generator, 50), convention="") for _ in range(2_000)]
    logs = torch.tensor([one.nats_per_token for one in found], dtype=torch.float64)
    stated = torch.tensor([(one.standard_error / one.value) ** 2 for one in found]).mean().sqrt()
    assert float(stated / logs.std()) == pytest.approx(1, abs=0.08)
    # Teeth: taking tokens for independent draws understates the error threefold.
    log_prob, tokens = simulated(generator, 50)
    naive = float((-log_prob / tokens).std() / tokens.sum().sqrt())
    assert naive / float(logs.std()) < 0.5


def test_a_single_sequence_has_no_standard_error():
    assert estimate([-3.0], [2]).standard_error is None
    assert estimate([-3.0], [2]).bits_per_byte is None


def test_impossible_text_has_infinite_perplexity():
    got = estimate([-math.inf, -1.0], [2, 2])
    assert got.value == math.inf and got.standard_error is None


def test_results_are_json_and_one_line():
    got = estimate([-3.0, -4.0], [2, 3], [9, 9])
    assert got.to_json()["value"] == got.value and got.to_json()["convention"] == "test"
    assert "\n" not in got.summary() and "bits per byte" in got.summary() and "(test)" in got.summary()


def test_mistakes_are_named():
    with pytest.raises(DataError, match="at least one scored token"):
        estimate([], [])
    with pytest.raises(DataError, match="at least one scored token"):
        estimate([-1.0, 0.0], [1, 0])
    with pytest.raises(ModelError, match="not a number"):
        estimate([math.nan], [1])
