"""An energy's outcome by hand, its way through JSON, and the page about it."""

import math
import statistics
from itertools import product

import pytest
import torch

from energylm.files import read_json, write_json
from energylm.report.plots import histogram_plot
from energylm.report.report import write_report
from energylm.training.calibration import Calibration
from energylm.training.energy_task import ContrastEnergies
from energylm.verbs.joint.training_energy import EnergyOutcome, certified_gain, energy_outcome, energy_sections

REAL_B = torch.tensor([-1.0, 1.0, -3.0, -3.0], dtype=torch.float64)
NOISE_BK = torch.tensor([[2.0, -2.0], [2.0, 2.0], [2.0, 2.0], [2.0, 6.0]], dtype=torch.float64)


def outcome(scale=0.5, shift=1.0, error=None):
    calibration = Calibration(scale, shift, contexts=9, scale_standard_error=error)
    return energy_outcome(ContrastEnergies(REAL_B, NOISE_BK), calibration)


def test_the_outcome_by_hand():
    """Raw: 3 of 4 real below 0, 7 of 8 generated above. E/2 + 1: real 0.5, 1.5, −0.5, −0.5; generated 0 once: 7/8."""
    result = outcome()
    assert (result.before.real_accuracy, result.before.generated_accuracy) == (0.75, 0.875)
    assert result.before.accuracy == pytest.approx(0.8125)
    assert (result.after.real_accuracy, result.after.generated_accuracy) == (0.5, 0.875)
    real = sum(math.log1p(math.exp(e)) for e in (-1, 1, -3, -3)) / 4
    noise = sum(math.log1p(math.exp(-e)) for e in (2, -2, 2, 2, 2, 2, 2, 6)) / 8
    assert result.before.loss == pytest.approx(real + noise)
    assert (result.real.mean, result.generated.mean) == (0.25, 2.0) and result.real.quantiles[2] == 0.0
    assert sum(result.real.counts) == 4 and sum(result.generated.counts) == 8
    assert result.edges[0] == -0.5 and result.edges[-1] == 4.0


def test_it_survives_json(tmp_path):
    write_json(tmp_path / "outcome.json", outcome().to_json())
    again = EnergyOutcome.from_json(read_json(tmp_path / "outcome.json"))
    assert again.before == outcome().before and list(again.real.counts) == list(outcome().real.counts)
    assert again.to_json() == EnergyOutcome.from_json(again.to_json()).to_json()
    newer = ("scale_standard_error", "gain")
    older = EnergyOutcome.from_json({name: value for name, value in outcome().to_json().items() if name not in newer})
    assert older.scale_standard_error is older.gain is None
    assert EnergyOutcome.from_json(outcome(error=0.07).to_json()).scale_standard_error == 0.07


LM = (0.5, 0.3, 0.2)  # of three continuations
ENERGY = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)


def expected_gain(gain, real, pool):
    """Its mean over all pools of that many draws, each with its probability."""
    pools = list(product(range(3), repeat=pool))
    weights = torch.tensor([math.prod(LM[draw] for draw in draws) for draws in pools], dtype=torch.float64)
    gains = torch.tensor([gain(ENERGY[[real]], ENERGY[list(draws)][None]) for draws in pools], dtype=torch.float64)
    return float(weights @ gains)


def sampler_gain(real, pool):
    """log q(x) − log P(x) of "draw `pool`, keep one by exp(−E)", by going through all draws and choices."""
    kept = 0.0
    for draws in product(range(3), repeat=pool):
        weight_N = torch.exp(-ENERGY[list(draws)])
        share = sum(float(weight_N[index] / weight_N.sum()) for index, draw in enumerate(draws) if draw == real)
        kept += math.prod(LM[draw] for draw in draws) * share
    return math.log(kept / LM[real])


@pytest.mark.parametrize("pool", [1, 2, 4])
def test_the_gain_is_below_that_of_the_sampler_whatever_the_pool(pool):
    """Exactly, for each continuation; with one draw both are 0. Teeth: the pool's own mean weight, which leaves the
    real text out, promises too much."""

    def naive(real_B, noise_BK):
        return float(-real_B[0] - (torch.logsumexp(-noise_BK[0], 0) - math.log(pool)))

    bounds = [expected_gain(lambda *pair: certified_gain(*pair).nats, real, pool) for real in range(3)]
    truth = [sampler_gain(real, pool) for real in range(3)]
    assert all(bound <= exact + 1e-12 for bound, exact in zip(bounds, truth, strict=True))
    assert bounds == pytest.approx(truth, abs=0.15 if pool > 1 else 1e-12)
    assert any(expected_gain(naive, real, pool) > exact + 0.01 for real, exact in enumerate(truth))


def test_the_gain_has_its_error_over_contexts_and_none_for_a_narrowed_proposal():
    gain = certified_gain(REAL_B, NOISE_BK)
    each = [certified_gain(REAL_B[[row]], NOISE_BK[[row]]).nats for row in range(4)]
    assert gain.nats == pytest.approx(statistics.mean(each)) and gain.candidates == 2
    assert gain.standard_error == pytest.approx(statistics.stdev(each) / 2)
    assert certified_gain(REAL_B[:1], NOISE_BK[:1]).standard_error is None
    raw = ContrastEnergies(REAL_B, NOISE_BK)
    assert energy_outcome(raw, Calibration(), is_untruncated=False).gain is None
    assert energy_outcome(raw, Calibration()).gain == gain


def test_the_page_says_what_was_fitted_on_what(tmp_path):
    journal = [{"step": 1, "loss": 1.4}, {"step": 2, "loss": 1.2, "accuracy": 0.6}, {"step": 2, "validation_loss": 1.3}]
    write_report(tmp_path, title="e", sections=energy_sections(outcome(), journal, about="Made up."))
    text = (tmp_path / "results.md").read_text()
    assert "E = 0.5 · raw + 1, fitted by the loss below on 9 validation contexts that nothing else uses" in text
    assert "the other 4" in text and "1.386 for an energy that knows nothing" in text
    assert (tmp_path / "loss.png").exists() and (tmp_path / "energies-of-real-and-generated-text.png").exists()
    (plot,) = (section for section in energy_sections(outcome(), journal, about="") if section.title == "Loss")
    assert plot.plot.y_label == "loss (nats per context)"
    assert "scale ±" not in text  # nothing is made up where no error is known
    (words, *_) = energy_sections(outcome(error=0.07), [], about="")
    assert "that nothing else uses (scale ± 0.07, a standard error over contexts)" in words.body
    short = energy_sections(outcome(), [], about="Made up.")
    assert [section.title for section in short][-1] == "Energies of real and generated text"  # no journal, no curve


def test_a_histogram_has_area_one_whatever_the_sample():
    """Two bins, of width 1 and 3: three quarters of the area over the first are a height of 0.75."""
    plot = histogram_plot([0.0, 1.0, 4.0], {"a": [3, 1], "b": [0, 50]}, x_label="energy")
    a, b = plot.series
    assert list(a.x) == [0, 0, 1, 1, 4, 4] and list(a.y) == pytest.approx([0, 0.75, 0.75, 0.25 / 3, 0.25 / 3, 0])
    assert max(b.y) == pytest.approx(1 / 3)
    assert plot.png()[:4] == b"\x89PNG"
