"""The page about reranking: the table, the metric over λ, and which hypotheses changed places."""

from collections.abc import Sequence
from pathlib import Path

from energylm.evaluation.rerank_outcome import SetOutcome
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table

MEANING = (
    "The 1-best is what the recogniser itself likes most, the oracle the best hypothesis that each list holds: no "
    "choice can be better. p is the share of resampled sets, the same utterances for both, in which reranking does not "
    "help.\n\nλ was chosen on the dev lists, by the metric in the plot; the numbers of the table are of the lists "
    "themselves, which took no part in that unless the table says so."
)


def rerank_table(outcomes: Sequence[SetOutcome], *, convention: str) -> Table:
    first = outcomes[0]
    columns = ["set", "lists", "λ", "1-best", first.metric, "from", "to", "oracle", "change", "p"]
    resamples = (
        f"95 % interval and one-sided p by paired bootstrap over lists ({first.comparison.resamples:,} resamples)"
    )
    return Table(
        [*columns, "changed", "better", "worse"],
        [_row(outcome) for outcome in outcomes],
        convention=f"{convention}; {resamples}",
    )


def _row(outcome: SetOutcome) -> list[Cell]:
    measured = outcome.comparison
    return [
        Path(outcome.name).stem + (" (tuned on itself)" if outcome.tuned_on_itself else ""),
        outcome.lists,
        _weights(outcome),
        measured.first.value,
        measured.second.value,
        measured.second.lower,
        measured.second.upper,
        outcome.oracle,
        measured.difference.value,
        measured.p_value,
        len(outcome.changes),
        sum(change.gain > 0 for change in outcome.changes),
        sum(change.gain < 0 for change in outcome.changes),
    ]


def weight_plot(outcome: SetOutcome, scorers: Sequence[str]) -> LinePlot:
    """The dev metric over λ of each scorer, at the best λ of the others."""
    assert outcome.tuning is not None
    better = min if outcome.lower_is_better else max
    series = []
    for number, name in enumerate(scorers):
        values: dict[float, list[float]] = {}
        for weights, value in zip(outcome.tuning.tried, outcome.tuning.values, strict=True):
            values.setdefault(weights[number], []).append(value)
        places = sorted(values)
        series.append(Series(name, places, [better(values[place]) for place in places]))
    return LinePlot(series, x_label="λ", y_label=f"{outcome.metric} on {Path(outcome.dev or '').stem}")


def rerank_sections(
    table: Table, outcomes: Sequence[SetOutcome], scorers: Sequence[str], *, shown: int
) -> list[Section]:
    """The sections of a report; of each set's changed hypotheses the `shown` with the greatest change."""
    sections: list[Section] = [Numbers("Reranking", table), Text("How to read it", MEANING)]
    for number, outcome in enumerate(outcomes, start=1):
        label = f"{number}. {Path(outcome.name).stem}"
        if outcome.tuning is not None:
            values = outcome.tuning.values
            alt = (
                f"{outcome.metric} on the dev lists for each λ, between {min(values):.4g} and {max(values):.4g}; "
                f"the best is {outcome.tuning.value:.4g} at λ = {_weights(outcome)}."
            )
            sections.append(Plot(f"Metric over λ: {label}", weight_plot(outcome, scorers), alt=alt))
        sections.append(Numbers(f"Changed hypotheses: {label}", _changed(outcome, shown)))
    return sections


def _changed(outcome: SetOutcome, shown: int) -> Table:
    greatest = sorted(outcome.changes, key=lambda change: -abs(change.gain))[:shown]
    unit = "errors fewer" if outcome.lower_is_better else "points of sentence BLEU more"
    return Table(
        ["utterance", "gain", "reference", "1-best", "reranked"],
        [[one.utterance, one.gain, one.reference, one.before, one.after] for one in greatest],
        convention=f"{len(greatest)} of {len(outcome.changes)} changes, the greatest first; gain: {unit}",
    )


def _weights(outcome: SetOutcome) -> str:
    return " ".join(f"{weight:g}" for weight in outcome.weights)
