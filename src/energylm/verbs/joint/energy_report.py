"""What a trained energy says of real and of generated text, before and after its calibration; and the page about it.

Loss is deng2020's eq. 3 in nats a context, whatever the energy was trained with; one that knows nothing has 2 log 2 =
1.386. Accuracy is the mean of two rates: real text with E < 0, generated text with E > 0. P@1 is the share of contexts
whose real text lies lowest (bakhtin2019 app. C); no calibration changes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from energylm.objectives.residual_energy import precision_at_1, residual_nce
from energylm.records import Record
from energylm.report.plots import histogram_plot, loss_plot
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table

BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Judgement:
    """How well energies tell real text from generated."""

    loss: float
    accuracy: float
    real_accuracy: float
    generated_accuracy: float
    precision_at_1: float


@dataclass(frozen=True)
class Spread:
    """How energies are spread: `quantiles` at `QUANTILES`, `counts` in the bins of the outcome's `edges`."""

    mean: float
    deviation: float
    quantiles: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class EnergyOutcome(Record):
    """On held-out contexts that neither training nor calibration has seen. `real` and `generated` are calibrated."""

    contexts: int
    negatives: int  # of each context
    calibration_contexts: int
    scale: float
    shift: float
    before: Judgement
    after: Judgement
    edges: tuple[float, ...]
    real: Spread
    generated: Spread
    scale_standard_error: float | None = None  # over the calibration's contexts; None: not calibrated


def energy_outcome(
    real_B: Tensor,
    noise_BK: Tensor,
    *,
    calibrate: Callable[[Tensor], Tensor],
    scale: float,
    shift: float,
    calibration_contexts: int,
    scale_standard_error: float | None = None,
) -> EnergyOutcome:
    """The outcome of raw energies of real text and of its negatives."""
    calibrated_B, calibrated_BK = calibrate(real_B), calibrate(noise_BK)
    real, generated = calibrated_B.numpy(), calibrated_BK.flatten().numpy()
    edges = np.histogram_bin_edges(np.concatenate([real, generated]), bins=BINS)
    return EnergyOutcome(
        contexts=len(real_B),
        negatives=noise_BK.shape[1],
        calibration_contexts=calibration_contexts,
        scale_standard_error=scale_standard_error,
        scale=scale,
        shift=shift,
        before=judge(real_B, noise_BK),
        after=judge(calibrated_B, calibrated_BK),
        edges=tuple(edges.tolist()),
        real=_spread(real, edges),
        generated=_spread(generated, edges),
    )


def judge(real_B: Tensor, noise_BK: Tensor) -> Judgement:
    real, generated = float((real_B < 0).double().mean()), float((noise_BK > 0).double().mean())
    return Judgement(
        loss=float(residual_nce(real_B, noise_BK).mean()),
        accuracy=(real + generated) / 2,
        real_accuracy=real,
        generated_accuracy=generated,
        precision_at_1=float(precision_at_1(real_B, noise_BK).mean()),
    )


def _spread(energies: NDArray[Any], edges: NDArray[Any]) -> Spread:
    return Spread(
        mean=float(energies.mean()),
        deviation=float(energies.std()),
        quantiles=tuple(np.quantile(energies, QUANTILES).tolist()),
        counts=tuple(np.histogram(energies, bins=edges)[0].tolist()),
    )


def energy_sections(outcome: EnergyOutcome, journal: Sequence[Mapping[str, Any]], *, about: str) -> list[Section]:
    """The report of a training run; `journal` are its lines, `about` says what was trained on what."""
    curve = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    sections: list[Section] = [
        Text("What this is", f"{about}\n\n{_calibration_words(outcome)}"),
        Numbers("Real against generated", _judgement_table(outcome)),
        Numbers("Energies", _energy_table(outcome)),
        Plot(
            "Energies of real and generated text",
            histogram_plot(
                outcome.edges,
                {"real": outcome.real.counts, "generated": outcome.generated.counts},
                x_label="calibrated energy (lower = likelier)",
            ),
            alt=f"Densities of calibrated energies. Real text has a mean of {outcome.real.mean:.2f}, generated text of "
            f"{outcome.generated.mean:.2f}, with standard deviations of {outcome.real.deviation:.2f} and "
            f"{outcome.generated.deviation:.2f}.",
        ),
    ]
    if curve:
        goes = f"Training loss goes from {curve[0][1]:.3f} to {curve[-1][1]:.3f}"
        valid = f"; validation loss ends at {validation[-1][1]:.3f}" if validation else ""
        plot = loss_plot(curve, validation, unit="nats per context")
        sections.append(Plot("Loss", plot, alt=f"Loss over training steps. {goes}{valid}."))
    return sections


def _calibration_words(outcome: EnergyOutcome) -> str:
    if not outcome.calibration_contexts:
        return "The energy is not calibrated: it is used as it was trained."
    error = outcome.scale_standard_error
    known = "" if error is None else f" (scale ± {error:.2g}, a standard error over contexts)"
    return (
        f"After training, the energy was calibrated: E = {outcome.scale:.4g} · raw + {outcome.shift:.4g}, fitted by "
        f"the loss below on {outcome.calibration_contexts:,} validation contexts that nothing else uses{known}. The "
        f"numbers below come from the other {outcome.contexts:,}, which chose the best step. A scale below 1 means "
        "that the network was overconfident. The scale matters to perplexity and sampling; the shift cancels there."
    )


def _judgement_table(outcome: EnergyOutcome) -> Table:
    rows: list[list[Cell]] = [
        [name, judged.loss, judged.accuracy, judged.real_accuracy, judged.generated_accuracy, judged.precision_at_1]
        for name, judged in (("as trained", outcome.before), ("calibrated", outcome.after))
    ]
    return Table(
        ["energy", "loss", "accuracy", "real text right", "generated text right", "P@1"],
        rows,
        convention=f"{outcome.contexts:,} held-out contexts with {outcome.negatives} negatives each; loss in nats per "
        "context (eq. 3), 1.386 for an energy that knows nothing; accuracy is the mean of two rates, 0.5 at chance; "
        f"P@1: real text lowest of {outcome.negatives + 1}, {1 / (outcome.negatives + 1):.3g} at chance",
    )


def _energy_table(outcome: EnergyOutcome) -> Table:
    rows: list[list[Cell]] = [
        [name, spread.mean, spread.deviation, *spread.quantiles]
        for name, spread in (("real", outcome.real), ("generated", outcome.generated))
    ]
    columns = ["text", "mean", "standard deviation", *(f"{quantile:.0%} quantile" for quantile in QUANTILES)]
    return Table(columns, rows, convention="calibrated energies; lower = likelier to be real")
