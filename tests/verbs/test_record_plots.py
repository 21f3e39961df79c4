"""`.plot()` of the records of grids, chains, reranking and detectors draws what their numbers say.

The figure that matplotlib is about to write is looked at: its axes, its lines point by point, its cells. Beside each,
a picture of other numbers, of fewer points or with its axes exchanged is told apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from energylm import plots
from energylm.config.texts import CellConfig
from energylm.errors import ConfigError
from energylm.estimators.discrimination import Discrimination, Interval
from energylm.estimators.mixing import Trace, diagnose
from energylm.estimators.weight_tuning import Tuning
from energylm.report import plots as report_plots
from energylm.report.grid_report import GridCell, summarise
from energylm.verbs.chains.mcmc_report import MCMCRun, chain_curves
from energylm.verbs.cloze.rerank_report import MetricInterval, RerankResult, SetOutcome
from energylm.verbs.detect.evaluating import DetectorEvaluation
from energylm.verbs.recipes.grid import GridResult

Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@pytest.fixture
def axes_of(monkeypatch):
    """The axes on which a picture draws itself."""

    def axes(picture: plots.Picture) -> Axes:
        figures = []
        for module in (plots, report_plots):
            monkeypatch.setattr(module, "png_of", lambda figure: figures.append(figure) or b"")
        picture.png()
        return figures[0].axes[0]

    return axes


def check_lines(axes: Axes, lines: Lines, *, x: str, y: str, x_scale: str = "linear") -> None:
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == (x, y, x_scale)
    assert [line.get_label() for line in axes.get_lines()] == list(lines)
    for line, (xs, ys) in zip(axes.get_lines(), lines.values(), strict=True):
        assert len(line.get_xdata()) == len(xs)
        assert np.asarray(line.get_xdata()) == pytest.approx(np.asarray(xs))
        assert np.asarray(line.get_ydata()) == pytest.approx(np.asarray(ys))


def test_chains_draw_the_mean_energy_of_every_epoch(axes_of):
    energy_BCN = torch.arange(2 * 3 * 8, dtype=torch.float64).sin().view(2, 3, 8)
    counts = torch.full((2, 3, 8), 4)
    trace = Trace(energy_BCN, counts, counts // 2, counts // 4, torch.ones(8), burn_in=2, exact=True, dispersed=True)
    run = MCMCRun([], diagnose(trace), chain_curves(trace), texts=2, chains=3, burn_in=2)
    lines = {"mean over texts and chains": (range(8), energy_BCN.mean((0, 1)).numpy())}
    check_lines(axes_of(run.plot()), lines, x="epoch", y="energy")
    late = replace(run.by_epoch, epoch=run.by_epoch.epoch[2:], energy=run.by_epoch.energy[2:])
    with pytest.raises(AssertionError):  # teeth: burn-in left out
        check_lines(axes_of(replace(run, by_epoch=late).plot()), lines, x="epoch", y="energy")


def outcome(*, lower_is_better=True, tuned=True):
    """Two scorers, λ of each among 0 and 1: the best of the other is shown."""
    tuning = Tuning((1.0, 0.0), 10.0, ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)), (40.0, 30.0, 10.0, 20.0), 60)
    interval = MetricInterval(10.0, 9.0, 11.0)
    return SetOutcome(
        name="test", lists=60, metric="WER", lower_is_better=lower_is_better, weights=(1.0, 0.0), dev="some/dev.json",
        tuning=tuning if tuned else None, one_best=interval, reranked=interval, difference=interval, p_value=0.5,
        resamples=10, oracle=5.0, changes=(), tied=0, empty=0,
    )  # fmt: skip


def test_reranking_draws_the_dev_metric_over_each_weight(axes_of):
    result = RerankResult({"a": outcome(tuned=False), "b": outcome()}, (), ("x", "y"), "", 1, 1.0)
    lines = {"x": ([0.0, 1.0], [30.0, 10.0]), "y": ([0.0, 1.0], [10.0, 20.0])}
    check_lines(axes_of(result.plot()), lines, x="λ", y="WER on dev")
    wrong = replace(result, sets={"b": outcome(lower_is_better=False)})
    with pytest.raises(AssertionError):  # teeth: the worst λ of the other scorer
        check_lines(axes_of(wrong.plot()), lines, x="λ", y="WER on dev")
    with pytest.raises(ConfigError, match="no λ was tuned, so there is nothing to draw; give dev lists"):
        replace(result, sets={"a": outcome(tuned=False)}).plot()


def measured(accuracy, *, at_5=0.3):
    auroc, accurate = Interval(accuracy + 0.05, 0.0, 1.0), Interval(accuracy, 0.1, 0.9)
    found = None if at_5 is None else Interval(at_5, 0.0, 1.0)
    return Discrimination(accurate, auroc, None, found, 0.0, 50, 50, 50, 50, 10)


def test_a_detector_draws_its_measures_over_length(axes_of):
    lengths = {16: measured(0.6), 64: measured(0.7, at_5=0.4), 256: measured(0.8, at_5=0.5)}
    run = DetectorEvaluation(measured(0.8), None, {}, lengths, {}, {}, overlap=0, left_out=0, false_positive_rate=None)
    tokens = list(lengths)
    lines = {
        "AUROC": (tokens, [0.65, 0.75, 0.85]),
        "balanced accuracy": (tokens, [0.6, 0.7, 0.8]),
        "TPR at 5 %": (tokens, [0.3, 0.4, 0.5]),
    }
    named = {"x": "tokens of each text that were read", "y": "share", "x_scale": "log"}
    check_lines(axes_of(run.plot()), lines, **named)
    with pytest.raises(AssertionError):  # teeth: a length less
        check_lines(axes_of(replace(run, lengths={16: lengths[16], 64: lengths[64]}).plot()), lines, **named)
    few = axes_of(replace(run, lengths=lengths | {8: measured(0.5, at_5=None)}).plot())
    assert [line.get_label() for line in few.get_lines()] == ["AUROC", "balanced accuracy"]  # not known everywhere
    with pytest.raises(ConfigError, match="no length was asked for, so there is no curve"):
        replace(run, lengths={}).plot()


def cell(energy, training, test, accuracy):
    stands = CellConfig(
        energy=energy, training=training, test=test, setting="in-domain" if training == test else "cross-corpus",
        training_corpora=[training], test_generator="big", test_corpus=test, note="" if accuracy else "seen before",
    )  # fmt: skip
    return GridCell(stands, measured(accuracy) if accuracy else None)


def check_map(axes: Axes, expected: Sequence[Sequence[float]], *, rows: list[str], columns: list[str]) -> None:
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tested on", "trained on")
    assert [label.get_text() for label in axes.get_yticklabels()] == rows
    assert [label.get_text() for label in axes.get_xticklabels()] == columns
    (image,) = axes.images
    np.testing.assert_allclose(np.ma.filled(image.get_array().astype(float), np.nan), expected)
    assert (image.norm.vmin, image.norm.vmax) == (0.5, 1.0)
    written = {text.get_position(): text.get_text().partition("\n")[0] for text in axes.texts}
    assert written == {
        (column, row): "not judged" if np.isnan(value) else f"{value:.3f}"
        for row, of_row in enumerate(expected)
        for column, value in enumerate(of_row)
    }


def test_a_grid_draws_the_accuracies_of_one_energy(axes_of, tmp_path):
    cells = [cell("unit", "a", "a", 0.9), cell("unit", "a", "b", 0.6), cell("unit", "b", "a", None)]
    cells += [cell("unit", "b", "b", 0.8), cell("linear", "a", "a", 0.55)]
    result = GridResult(tmp_path, tmp_path, summarise(cells).to_json())
    drawn = {"rows": ["a", "b"], "columns": ["a", "b"]}
    expected = [[0.9, 0.6], [np.nan, 0.8]]
    check_map(axes_of(result.plot()), expected, **drawn)
    check_map(axes_of(result.plot("linear")), [[0.55]], rows=["a"], columns=["a"])
    turned = [GridCell(replace_stands(each), each.measured) for each in cells]
    with pytest.raises(AssertionError):  # teeth: what it was trained on for what it was tested on
        check_map(axes_of(GridResult(tmp_path, tmp_path, summarise(turned).to_json()).plot()), expected, **drawn)
    with pytest.raises(ConfigError, match="there is no energy 'other' in this grid; it has unit, linear"):
        result.plot("other")


def replace_stands(of: GridCell) -> CellConfig:
    return of.stands.model_copy(update={"training": of.stands.test, "test": of.stands.training})
