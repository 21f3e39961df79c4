"""What reranking did to sets of lists, and the page about it.

Of each set: against the 1-best by paired bootstrap, the oracle, the lists that changed, the dev metric over λ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from energylm.bundles.reranker import Reranked
from energylm.data.nbest import NBest
from energylm.errors import ConfigError
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, MetricInterval
from energylm.estimators.weight_tuning import Tuning
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text
from energylm.tables import Cell, Table
from energylm.training.state import TrainedRun

MEANING = (
    "The 1-best is what the recogniser itself likes most, the oracle the best hypothesis that each list holds: no "
    "choice can be better. p is the share of resampled sets, the same utterances for both, in which reranking does not "
    "help.\n\nλ was chosen on the dev lists, by the metric in the plot; the numbers of the table are of the lists "
    "themselves, which took no part in that unless the table says so."
)


@dataclass(frozen=True)
class ChangedChoice(Record):
    """A list with another text in first place. `gain` is positive where that was for the better."""

    utterance: str
    reference: str
    before: str
    after: str
    gain: float  # errors fewer, or points of sentence BLEU more


@dataclass(frozen=True)
class SetOutcome(Record):
    """One set of lists, measured; numbers in the metric's own unit."""

    name: str
    lists: int
    metric: str
    lower_is_better: bool
    weights: tuple[float, ...]
    dev: str | None
    tuning: Tuning | None  # None for a fixed λ
    one_best: MetricInterval
    reranked: MetricInterval
    difference: MetricInterval  # reranked − 1-best
    p_value: float  # of "reranking is no better"
    resamples: int
    oracle: float
    changes: tuple[ChangedChoice, ...]
    tied: int  # lists whose best total was shared by several hypotheses
    empty: int  # hypotheses without text
    closed: MetricInterval | None = None  # per cent of the way from the 1-best to the oracle
    sharpness: float | None = None  # of minimum risk

    computed = ("weights_text",)

    @property
    def tuned_on_itself(self) -> bool:
        return self.dev == self.name

    @property
    def weights_text(self) -> str:
        """All λ in one cell of a table."""
        return " ".join(f"{weight:.4g}" for weight in self.weights)


@dataclass(frozen=True)
class RerankResult(Record):
    sets: dict[str, SetOutcome]  # those that have references, by the name of their file without its ending
    chosen: tuple[tuple[Reranked, ...], ...]  # of every set
    scorers: tuple[str, ...]
    convention: str
    hypotheses: int
    seconds: float  # of scoring, whenever that was
    lists: int = 0  # that were scored
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("hypotheses_per_second", "seconds_a_list")

    @property
    def outcomes(self) -> list[SetOutcome]:
        return list(self.sets.values())

    @property
    def hypotheses_per_second(self) -> float:
        return self.hypotheses / max(self.seconds, 1e-9)

    @property
    def seconds_a_list(self) -> float | None:
        return self.seconds / self.lists if self.lists else None

    @property
    def best_lines(self) -> str:
        return "".join(map(best_lines, self.chosen))

    @property
    def table(self) -> Table:
        if not self.sets:
            rows: list[list[Cell]] = [[best.utterance, best.best] for of_set in self.chosen for best in of_set]
            return Table(["utterance", "best"], rows, convention=self.convention)
        return rerank_table(self.outcomes, convention=self.convention)

    def plot(self) -> LinePlot:
        """The dev metric over λ, of the first set whose λ was tuned."""
        tuned = next((outcome for outcome in self.outcomes if outcome.tuning is not None), None)
        if tuned is None:
            raise ConfigError("no λ was tuned, so there is nothing to draw; give dev lists")
        return weight_plot(tuned, self.scorers)

    def summary(self) -> str:
        if not self.scorers:
            return f"{self.hypotheses:,} hypotheses with no scores but the recogniser's"
        return (
            f"{self.hypotheses:,} hypotheses scored with {', '.join(self.scorers)} in {self.seconds:,.1f} s, "
            f"{self.hypotheses_per_second:,.1f} a second"
        )


def best_lines(chosen: Sequence[Reranked]) -> str:
    return "".join(f"{best.utterance}\t{best.best}\n" for best in chosen)


def best_members(lists: Sequence[NBest], statistics_UHM: Floats, metric: AdditiveMetric) -> list[int]:
    """Each list's best hypothesis, the oracle's choice; for BLEU by the sentence's own BLEU, nearly the best set."""
    worth_UH = metric.worth(statistics_UHM)
    return [int(np.argmax(worth_UH[row, : len(of_list.hypotheses)])) for row, of_list in enumerate(lists)]


def changed_choices(
    lists: Sequence[NBest], before_U: list[int], after_U: list[int], worth_UH: Floats
) -> Iterator[ChangedChoice]:
    for row, (of_list, before, after) in enumerate(zip(lists, before_U, after_U, strict=True)):
        if of_list.hypotheses[before].text != of_list.hypotheses[after].text:
            yield ChangedChoice(
                utterance=of_list.utterance,
                reference=of_list.reference or "",
                before=of_list.hypotheses[before].text,
                after=of_list.hypotheses[after].text,
                gain=float(worth_UH[row, after] - worth_UH[row, before]),
            )


def rerank_table(outcomes: Sequence[SetOutcome], *, convention: str) -> Table:
    first = outcomes[0]
    columns = ["set", "lists", "λ", "1-best", first.metric, "from", "to", "oracle", "closed %", "change", "p"]
    resamples = f"95 % interval and one-sided p by paired bootstrap over lists ({first.resamples:,} resamples)"
    return Table(
        [*columns, "changed", "better", "worse"],
        [_row(outcome) for outcome in outcomes],
        convention=f"{convention}; {resamples}",
    )


def _row(outcome: SetOutcome) -> list[Cell]:
    return [
        Path(outcome.name).stem + (" (tuned on itself)" if outcome.tuned_on_itself else ""),
        outcome.lists,
        outcome.weights_text,
        outcome.one_best.value,
        outcome.reranked.value,
        outcome.reranked.lower,
        outcome.reranked.upper,
        outcome.oracle,
        None if outcome.closed is None else outcome.closed.value,
        outcome.difference.value,
        outcome.p_value,
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
        tried = sorted(values)
        series.append(Series(name, tried, [better(values[weight]) for weight in tried]))
    return LinePlot(series, x_label="λ", y_label=f"{outcome.metric} on {Path(outcome.dev or '').stem}")


def rerank_sections(
    table: Table, outcomes: Sequence[SetOutcome], scorers: Sequence[str], *, shown: int
) -> list[Section]:
    """The sections of a report; of each set's changed hypotheses the `shown` with the greatest change."""
    sections: list[Section] = [Numbers("Reranking", table), Text("How to read it", MEANING)]
    for number, outcome in enumerate(outcomes, start=1):
        label = f"{number}. {Path(outcome.name).stem}"
        if outcome.tuning is not None and outcome.weights:
            values = outcome.tuning.values
            alt = (
                f"{outcome.metric} on the dev lists for each λ, between {min(values):.4g} and {max(values):.4g}; "
                f"the best is {outcome.tuning.value:.4g} at λ = {outcome.weights_text}."
            )
            sections.append(Plot(f"Metric over λ: {label}", weight_plot(outcome, scorers), alt=alt))
        sections.append(Numbers(f"Changed hypotheses: {label}", _changed(outcome, shown)))
    return sections


def _changed(outcome: SetOutcome, shown: int) -> Table:
    greatest = sorted(outcome.changes, key=lambda change: -abs(change.gain))[:shown]
    unit = "errors fewer" if outcome.lower_is_better else f"points of sentence {outcome.metric} more"
    return Table(
        ["utterance", "gain", "reference", "1-best", "reranked"],
        [[each.utterance, each.gain, each.reference, each.before, each.after] for each in greatest],
        convention=f"{len(greatest)} of {len(outcome.changes)} changes, the greatest first; gain: {unit}",
    )


@dataclass(frozen=True, kw_only=True)
class RerankerRun(TrainedRun):
    """Numbers of the training lists or the dev lists, cross-fitted; in the metric's own unit."""

    metric: str
    lists: int
    folds: int
    unseen: bool  # whether these are dev lists, of which the energy saw none
    one_best: MetricInterval
    energy_alone: float  # f − λE
    reranked: MetricInterval  # all scorers and terms
    oracle: float
    closed: MetricInterval | None  # per cent of the way from the 1-best to the oracle
    p_value: float  # of "reranking is no better"
    weighed: tuple[str, ...]  # what has a λ
    weights: tuple[float, ...]  # of all folds together, as saved
    weight_alone: float | None = None  # of the energy by itself, likewise; None in results of old

    def summary(self) -> str:
        closed = (
            "" if self.closed is None else f", {self.closed.value:.1f} % of the way to the oracle's {self.oracle:.2f}"
        )
        judge = "λ" if self.unseen else "what learnt"
        weights = ", ".join(f"{name} {weight:.4g}" for name, weight in zip(self.weighed, self.weights, strict=True))
        return (
            f"{self.metric} {self.one_best.value:.2f} -> {self.reranked.value:.2f} (energy alone "
            f"{self.energy_alone:.2f}) over {self.lists:,} lists, each judged by {judge} from the other "
            f"{self.folds - 1} of {self.folds} folds{closed}, p = {self.p_value:.2g}; λ: {weights}"
        )
