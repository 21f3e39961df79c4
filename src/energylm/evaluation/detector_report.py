"""What is shown of a detector: its measures with intervals, by source, by length; its verdicts; its training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from energylm.bundles.detector_results import Detection
from energylm.estimators.discrimination import Discrimination
from energylm.tables import Table
from energylm.report.plots import LinePlot, Series, loss_plot
from energylm.report.report import Numbers, Plot, Section, Text

CONVENTION = (
    "higher score = machine; 95 % bootstrap intervals by text; balanced accuracy at even odds; TPR = share of machine "
    "texts found where 1 % or 5 % of these human texts are called machine"
)


@dataclass(frozen=True)
class Verdicts:
    """Shares of one class."""

    texts: int
    machine: float
    human: float
    abstains: float

    @classmethod
    def of(cls, detections: Sequence[Detection]) -> "Verdicts":
        count = max(len(detections), 1)
        shares = {
            verdict: sum(one.verdict == verdict for one in detections) / count
            for verdict in ("machine", "human", "abstains")
        }
        return cls(len(detections), **shares)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measures_table(rows: Mapping[str, Discrimination], *, convention: str = CONVENTION) -> Table:
    """A row a detector or a source."""
    return Table(
        ["", "human", "machine", "AUROC", "TPR at 1 %", "TPR at 5 %", "balanced accuracy"],
        [
            [name, m.real, m.machine, str(m.auroc), str(m.tpr_at_1), str(m.tpr_at_5), str(m.balanced_accuracy)]
            for name, m in rows.items()
        ],
        convention=convention,
    )


def verdicts_table(rows: Mapping[str, Verdicts], *, asked_rate: float | None) -> Table:
    asked = "it is not calibrated" if asked_rate is None else f"calibrated for {asked_rate:.3g} false positives"
    return Table(
        ["", "texts", "called machine", "called human", "abstains"],
        [[name, one.texts, one.machine, one.human, one.abstains] for name, one in rows.items()],
        convention=f"verdicts of the detector with its own threshold; {asked}",
    )


def lengths_plot(curve: Mapping[int, Discrimination]) -> LinePlot:
    """Accuracy and AUROC over tokens read."""
    tokens = [float(length) for length in curve]
    measured = list(curve.values())
    return LinePlot(
        [
            Series("AUROC", tokens, [m.auroc.value for m in measured]),
            Series("balanced accuracy", tokens, [m.balanced_accuracy.value for m in measured]),
            Series("TPR at 5 %", tokens, [m.tpr_at_5.value for m in measured]),
        ],
        x_label="tokens of each text that were read",
        y_label="share",
        log_x=True,
    )


def evaluation_sections(
    *,
    about: str,
    overall: Mapping[str, Discrimination],
    sources: Mapping[str, Discrimination],
    verdicts: Mapping[str, Verdicts],
    asked_rate: float | None,
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
        Numbers("Verdicts", verdicts_table(verdicts, asked_rate=asked_rate)),
    ]
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


def training_sections(outcome: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], *, about: str) -> list[Section]:
    """The report of a training run: what was held out, the calibration, and the loss over steps."""
    held_out = outcome["held_out"]
    rows = [
        [name, held_out[key]["value"], held_out[key]["lower"], held_out[key]["upper"]]
        for name, key in (
            ("AUROC", "auroc"),
            ("TPR at 1 % FPR", "tpr_at_1"),
            ("TPR at 5 % FPR", "tpr_at_5"),
            ("balanced accuracy, uncalibrated", "balanced_accuracy"),
        )
    ]
    sections: list[Section] = [
        Text("What this is", about),
        Numbers(
            "Texts held out",
            Table(
                ["measure", "value", "lower", "upper"],
                rows,
                convention=f"{held_out['real']:,} human and {held_out['machine']:,} machine texts that neither "
                "training nor the choice of the best step has seen; 95 % bootstrap intervals by text",
            ),
        ),
    ]
    if outcome["calibration"]:
        columns = [
            "shortest",
            "scale",
            "shift",
            "threshold",
            "false_positive_rate",
            "false_positive_upper",
            "human",
            "machine",
        ]
        spans = [[span[column] for column in columns] for span in outcome["calibration"]["spans"]]
        titles = ["tokens from", *columns[1:4], "false positives", "below (95 %)", *columns[6:]]
        convention = "log-odds of machine = scale · score + shift; a score above the threshold is called machine"
        sections.append(Numbers("Calibration by length", Table(titles, spans, convention=convention)))
    curve = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    if curve:
        plot = loss_plot(curve, validation, unit="nats per pair of blocks")
        alt = f"Loss over training steps, from {curve[0][1]:.3f} to {curve[-1][1]:.3f}; 1.386 is chance."
        sections.append(Plot("Loss", plot, alt=alt))
    return sections
