"""An energy's outcome by hand, its way through JSON, and the page about it."""

import math

import pytest
import torch

from energylm.files import read_json, write_json
from energylm.report.plots import histogram_plot
from energylm.report.report import write_report
from energylm.verbs.joint.energy_report import EnergyOutcome, energy_outcome, energy_sections

REAL_B = torch.tensor([-1.0, 1.0, -3.0, -3.0], dtype=torch.float64)
NOISE_BK = torch.tensor([[2.0, -2.0], [2.0, 2.0], [2.0, 2.0], [2.0, 6.0]], dtype=torch.float64)


def outcome(scale=0.5, shift=1.0, error=None):
    return energy_outcome(
        REAL_B,
        NOISE_BK,
        calibrate=lambda raw: scale * raw + shift,
        scale=scale,
        shift=shift,
        calibration_contexts=9,
        scale_standard_error=error,
    )


def test_the_outcome_by_hand():
    """Raw: 3 of 4 real below 0, 7 of 8 generated above. E/2 + 1: real 0.5, 1.5, −0.5, −0.5; generated 0 once: 7/8."""
    found = outcome()
    assert (found.before.real_accuracy, found.before.generated_accuracy) == (0.75, 0.875)
    assert found.before.accuracy == pytest.approx(0.8125)
    assert (found.after.real_accuracy, found.after.generated_accuracy) == (0.5, 0.875)
    real = sum(math.log1p(math.exp(e)) for e in (-1, 1, -3, -3)) / 4
    noise = sum(math.log1p(math.exp(-e)) for e in (2, -2, 2, 2, 2, 2, 2, 6)) / 8
    assert found.before.loss == pytest.approx(real + noise)
    assert (found.real.mean, found.generated.mean) == (0.25, 2.0) and found.real.quantiles[2] == 0.0
    assert sum(found.real.counts) == 4 and sum(found.generated.counts) == 8
    assert found.edges[0] == -0.5 and found.edges[-1] == 4.0


def test_it_survives_json(tmp_path):
    write_json(tmp_path / "outcome.json", outcome().to_json())
    again = EnergyOutcome.from_json(read_json(tmp_path / "outcome.json"))
    assert again.before == outcome().before and list(again.real.counts) == list(outcome().real.counts)
    assert again.to_json() == EnergyOutcome.from_json(again.to_json()).to_json()
    before_errors = {name: value for name, value in outcome().to_json().items() if name != "scale_standard_error"}
    assert EnergyOutcome.from_json(before_errors).scale_standard_error is None
    assert EnergyOutcome.from_json(outcome(error=0.07).to_json()).scale_standard_error == 0.07


def test_the_page_says_what_was_fitted_on_what(tmp_path):
    journal = [{"step": 1, "loss": 1.4}, {"step": 2, "loss": 1.2, "accuracy": 0.6}, {"step": 2, "validation_loss": 1.3}]
    write_report(tmp_path, title="e", sections=energy_sections(outcome(), journal, about="Made up."))
    text = (tmp_path / "results.md").read_text()
    assert "E = 0.5 · raw + 1, fitted by the loss below on 9 validation contexts that nothing else uses" in text
    assert "the other 4" in text and "1.386 for an energy that knows nothing" in text
    assert (tmp_path / "loss.png").exists() and (tmp_path / "energies-of-real-and-generated-text.png").exists()
    (plot,) = (section for section in energy_sections(outcome(), journal, about="") if section.title == "Loss")
    assert plot.plot.y_label == "loss (nats per context)"
    assert "±" not in text  # nothing is made up where no error is known
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
