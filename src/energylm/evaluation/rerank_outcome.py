"""What reranking did to a set of lists: against the 1-best by paired bootstrap, the oracle, the lists that changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energylm.bundles.reranker import Reranked
from energylm.data.formats.nbest import NBest
from energylm.estimators.additive_metrics import AdditiveMetric, Floats
from energylm.estimators.paired_bootstrap import PairedComparison, paired_bootstrap
from energylm.estimators.weight_tuning import Tuning


@dataclass(frozen=True)
class Change:
    """A list with another text in first place. `gain` is positive where that was for the better."""

    utterance: str
    reference: str
    before: str
    after: str
    gain: float  # errors fewer, or points of sentence BLEU more


@dataclass(frozen=True)
class SetOutcome:
    """One set of lists, measured."""

    name: str
    lists: int
    metric: str
    lower_is_better: bool
    weights: tuple[float, ...]
    dev: str | None
    tuning: Tuning | None  # None for a fixed λ
    comparison: PairedComparison  # first = 1-best, second = reranked
    oracle: float
    changes: tuple[Change, ...]
    tied: int  # lists whose best total was shared by several hypotheses
    empty: int  # hypotheses without text

    @property
    def tuned_on_itself(self) -> bool:
        return self.dev == self.name

    def to_json(self) -> dict[str, Any]:
        found = {
            "name": self.name,
            "lists": self.lists,
            "metric": self.metric,
            "weights": list(self.weights),
            "dev": self.dev,
            "one_best": self.comparison.first.to_json(),
            "reranked": self.comparison.second.to_json(),
            "difference": self.comparison.difference.to_json(),
            "p_value": self.comparison.p_value,
            "oracle": self.oracle,
            "changed": len(self.changes),
            "tied": self.tied,
            "empty": self.empty,
        }
        if self.tuning is not None:
            pairs = zip(self.tuning.tried, self.tuning.values, strict=True)
            found |= {
                "dev_lists": self.tuning.lists,
                "dev_value": self.tuning.value,
                "curve": [{"weights": list(weights), "value": value} for weights, value in pairs],
            }
        return found


def set_outcome(
    lists: Sequence[NBest],
    chosen: Sequence[Reranked],
    statistics_UHM: Floats,
    metric: AdditiveMetric,
    *,
    name: str,
    dev: str | None,
    weights: tuple[float, ...],
    tuning: Tuning | None,
    resamples: int,
    seed: int,
) -> SetOutcome:
    """Compare the `chosen` hypotheses with the recogniser's own."""
    rows_U = np.arange(len(lists))
    before_U = np.array([one_best(of_list) for of_list in lists])
    after_U = np.array([result.order[0] for result in chosen])
    comparison = paired_bootstrap(
        statistics_UHM[rows_U, before_U], statistics_UHM[rows_U, after_U], metric, resamples=resamples, seed=seed
    )
    return SetOutcome(
        name=name,
        lists=len(lists),
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        weights=weights,
        dev=dev,
        tuning=tuning,
        comparison=comparison,
        oracle=oracle(lists, statistics_UHM, metric),
        changes=tuple(_changes(lists, before_U.tolist(), after_U.tolist(), metric.worth(statistics_UHM))),
        tied=sum(result.tied for result in chosen),
        empty=sum(not hypothesis.text.strip() for of_list in lists for hypothesis in of_list.hypotheses),
    )


def one_best(of_list: NBest) -> int:
    """The place of what the recogniser itself scores highest, the first of equals."""
    return max(range(len(of_list.hypotheses)), key=lambda place: of_list.hypotheses[place].score)


def oracle(lists: Sequence[NBest], statistics_UHM: Floats, metric: AdditiveMetric) -> float:
    """The metric of each list's best hypothesis; for BLEU the best by the sentence's own BLEU, nearly the best set."""
    worth_UH = metric.worth(statistics_UHM)
    best = [int(np.argmax(worth_UH[row, : len(one.hypotheses)])) for row, one in enumerate(lists)]
    return float(metric.value(statistics_UHM[np.arange(len(lists)), best].sum(0)))


def _changes(lists: Sequence[NBest], before_U: list[int], after_U: list[int], worth_UH: Floats) -> Iterator[Change]:
    for row, (one, before, after) in enumerate(zip(lists, before_U, after_U, strict=True)):
        if one.hypotheses[before].text != one.hypotheses[after].text:
            yield Change(
                utterance=one.utterance,
                reference=one.reference or "",
                before=one.hypotheses[before].text,
                after=one.hypotheses[after].text,
                gain=float(worth_UH[row, after] - worth_UH[row, before]),
            )
