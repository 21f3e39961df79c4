"""What is shown of a detector: its measures with intervals, by source, by length; its verdicts; its training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energylm.bundles.detector_calibration import DetectorCalibration
from energylm.bundles.detector_results import Detection
from energylm.estimators.discrimination import FALSE_POSITIVE_RATES, Discrimination, Interval
from energylm.estimators.false_positive_threshold import texts_needed
from energylm.records import Record
from energylm.report.plots import LinePlot, Series, loss_plot
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table

CONVENTION = (
    "higher score = machine; 95 % bootstrap intervals by text; balanced accuracy at even odds; TPR = share of machine "
    "texts found where 1 % or 5 % of these human texts are called machine, where they are enough to show that"
)
_PROMISES = {"length": "texts of this length", "together": "with other rare lengths", "none": "none: it abstains"}


@dataclass(frozen=True)
class VerdictShares(Record):
    """Shares of the texts of one class."""

    texts: int
    machine: float
    human: float
    abstains: float

    @classmethod
    def of(cls, detections: Sequence[Detection]) -> "VerdictShares":
        count = max(len(detections), 1)
        shares = {
            verdict: sum(detection.verdict == verdict for detection in detections) / count
            for verdict in ("machine", "human", "abstains")
        }
        return cls(len(detections), **shares)


def measures_table(rows: Mapping[str, Discrimination], *, convention: str = CONVENTION) -> Table:
    """A row a detector or a source."""
    return Table(
        ["", "human", "machine", "AUROC", "TPR at 1 %", "TPR at 5 %", "balanced accuracy"],
        [
            [name, m.real, m.machine, str(m.auroc), *map(_shown, _at_rates(m)), str(m.balanced_accuracy)]
            for name, m in rows.items()
        ],
        convention=convention,
    )


def _at_rates(measured: Discrimination) -> list[Interval | int]:
    """TPR at each rate, or how many human texts it needs."""
    rates = zip(FALSE_POSITIVE_RATES, (measured.tpr_at_1, measured.tpr_at_5), strict=True)
    return [tpr or texts_needed(rate) for rate, tpr in rates]


def _shown(tpr: Interval | int) -> str:
    return f"needs {tpr} human texts" if isinstance(tpr, int) else str(tpr)


def calibration_table(calibration: DetectorCalibration) -> Table:
    """A row a span: what is promised to human texts of this length, and how many texts it rests on."""
    checked = calibration.text_range
    refused = "not checked (too few texts)" if checked is None else f"refused with probability {checked.rate:.3g}"
    return Table(
        ["length", "promise for", "human", "false positives", "below (95 %)", "threshold", "machine", "scale", "shift"],
        [
            [
                calibration.lengths(span),
                _PROMISES[span.promise],
                span.human,
                span.false_positive_rate,
                span.false_positive_upper,
                span.threshold,
                span.machine,
                span.scale,
                span.shift,
            ]
            for span in calibration.spans
        ],
        convention=f"a new human text like the {'beginnings of ' if calibration.max_tokens else ''}texts of the "
        f"calibration scores above the threshold with the probability of false positives, at most "
        f"{calibration.asked_rate:.3g}, also over all lengths; 95 times in 100 these texts lead to a rate below the "
        f"next column; a text like them is taken for unlike and {refused}; log-odds of machine = scale · score + shift",
    )


def coverage_table(calibration: DetectorCalibration, human: Mapping[int, VerdictShares]) -> Table:
    """What became of the promise: human texts by span, which is named by its shortest length."""
    spans = {span.shortest: span for span in calibration.spans}
    return Table(
        ["length", "human texts", "called machine", "abstains", "promised", "promise for"],
        [
            [
                calibration.lengths(spans[shortest]),
                of.texts,
                of.machine,
                of.abstains,
                spans[shortest].false_positive_rate,
                _PROMISES[spans[shortest].promise],
            ]
            for shortest, of in human.items()
        ],
        convention="shares of the human texts of each length; promised: the probability of being called machine for a "
        "new human text like those of the calibration",
    )


def verdicts_table(rows: Mapping[str, VerdictShares], calibration: DetectorCalibration | None) -> Table:
    asked = "it is not calibrated"
    if calibration is not None:
        asked = f"calibrated for {calibration.asked_rate:.3g} false positives"
    return Table(
        ["", "texts", "called machine", "called human", "abstains"],
        [[name, of.texts, of.machine, of.human, of.abstains] for name, of in rows.items()],
        convention=f"verdicts of the detector with its own threshold; {asked}",
    )


def lengths_plot(curve: Mapping[int, Discrimination]) -> LinePlot:
    """Accuracy and AUROC over tokens read."""
    tokens, measured = [float(length) for length in curve], list(curve.values())
    lines = [
        Series("AUROC", tokens, [m.auroc.value for m in measured]),
        Series("balanced accuracy", tokens, [m.balanced_accuracy.value for m in measured]),
    ]
    at_5 = [m.tpr_at_5.value for m in measured if m.tpr_at_5 is not None]
    if len(at_5) == len(measured):
        lines.append(Series("TPR at 5 %", tokens, at_5))
    return LinePlot(lines, x_label="tokens of each text that were read", y_label="share", log_x=True)


def evaluation_sections(
    *,
    about: str,
    overall: Mapping[str, Discrimination],
    sources: Mapping[str, Discrimination],
    verdicts: Mapping[str, VerdictShares],
    calibration: DetectorCalibration | None,
    coverage: Mapping[int, VerdictShares],
    curve: Mapping[int, Discrimination],
) -> list[Section]:
    sections: list[Section] = [
        Text("What this is", about),
        Numbers("Detection", measures_table(overall)),
        Numbers(
            "By machine source",
            measures_table(
                sources,
                convention=f"each against the human texts of its own file or, if that has none, all; {CONVENTION}",
            ),
        ),
        Numbers("Verdicts", verdicts_table(verdicts, calibration)),
    ]
    if calibration is not None:
        sections.append(Numbers("False positives by length", coverage_table(calibration, coverage)))
    if curve:
        first, last = next(iter(curve)), list(curve)[-1]
        table = measures_table(
            {f"{length} tokens": measured for length, measured in curve.items()},
            convention=f"a piece of so many tokens at a random place of each text that is long enough; {CONVENTION}",
        )
        ends = [f"{curve[length].auroc.value:.2f} at {length} tokens" for length in (first, last)]
        alt = f"AUROC goes from {ends[0]} to {ends[1]}."
        sections += [Numbers("By length", table), Plot("Accuracy over length", lengths_plot(curve), alt=alt)]
    return sections


def training_sections(
    held_out: Discrimination,
    calibration: DetectorCalibration | None,
    journal: Sequence[Mapping[str, Any]],
    *,
    about: str,
) -> list[Section]:
    """The report of a training run: what was held out, the calibration, and the loss over steps."""
    measures = {
        "AUROC": held_out.auroc,
        "TPR at 1 % FPR": held_out.tpr_at_1,
        "TPR at 5 % FPR": held_out.tpr_at_5,
        "balanced accuracy, uncalibrated": held_out.balanced_accuracy,
    }
    rows: list[list[Cell]] = [
        [name, *((None, None, None) if of is None else (of.value, of.lower, of.upper))] for name, of in measures.items()
    ]
    sections: list[Section] = [
        Text("What this is", about),
        Numbers(
            "Texts held out",
            Table(
                ["measure", "value", "lower", "upper"],
                rows,
                convention=f"{held_out.real:,} human and {held_out.machine:,} machine texts that neither "
                "training nor the choice of the best step has seen; 95 % bootstrap intervals by text; TPR at 1 % needs "
                f"{texts_needed(0.01)} human texts, at 5 % {texts_needed(0.05)}",
            ),
        ),
    ]
    if calibration is not None:
        sections.append(Numbers("Calibration by length", calibration_table(calibration)))
    curve = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    if curve:
        plot = loss_plot(curve, validation, unit="nats per pair of blocks")
        alt = f"Loss over training steps, from {curve[0][1]:.3f} to {curve[-1][1]:.3f}; 1.386 is chance."
        sections.append(Plot("Loss", plot, alt=alt))
    return sections
