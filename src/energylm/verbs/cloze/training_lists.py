"""The lists of `energylm rerank train`: what is learnt from, what is judged, and that the two stay apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energylm.bundles.reranker import hypothesis_statistics
from energylm.data.nbest import NBest, read_lists, recording_of, sample_lists, with_context
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, text_costs
from energylm.progress import say
from energylm.training.list_task import CostedList, list_folds, same_reference
from energylm.verbs.cloze.rerank_train import TrainReranker

Indices = NDArray[np.int64]
RIGHT = 1e-9  # cost of a hypothesis that is the reference, up to rounding


@dataclass(frozen=True)
class TrainingLists:
    """The lists of a run, what is known of them, and their folds."""

    lists: list[NBest]
    statistics_UHM: Floats
    costed: list[CostedList]
    folds: list[Indices]

    @classmethod
    def of(
        cls, lists: list[NBest], metric: AdditiveMetric, *, folds: int, with_reference: bool = False
    ) -> "TrainingLists":
        statistics_UHM = hypothesis_statistics(lists, metric)
        costed = _costed(lists, statistics_UHM, metric, with_reference=with_reference)
        return cls(lists, statistics_UHM, costed, list_folds([each.reference or "" for each in lists], folds))

    def without(self, fold: int) -> list[CostedList]:
        """What may be learnt from where `fold` is to be judged."""
        return [self.costed[index] for other, part in enumerate(self.folds) if other != fold for index in part]


def costed_lists(lists: list[NBest], metric: AdditiveMetric, *, with_reference: bool = False) -> list[CostedList]:
    """Of lists that are learnt from and not judged."""
    if not lists:
        return []
    return _costed(lists, hypothesis_statistics(lists, metric), metric, with_reference=with_reference)


def _costed(
    lists: list[NBest], statistics_UHM: Floats, metric: AdditiveMetric, *, with_reference: bool
) -> list[CostedList]:
    cost_UH = text_costs(statistics_UHM, metric)
    costed = []
    for row, of_list in enumerate(lists):
        filled = [index for index, each in enumerate(of_list.hypotheses) if each.text.strip()]
        members = [of_list.hypotheses[index] for index in filled]
        costs = tuple(float(cost_UH[row, index]) for index in filled)
        texts, base = tuple(each.text for each in members), tuple(each.score for each in members)
        if with_reference and members and min(costs) > RIGHT and (of_list.reference or "").strip():
            texts, base, costs = (*texts, str(of_list.reference)), (*base, max(base)), (*costs, 0.0)
        costed.append(CostedList(texts, base, costs, of_list.context))
    return costed


def read_training_lists(verb: TrainReranker) -> tuple[list[NBest], list[NBest], list[NBest]]:
    """The lists, the dev lists, and those that are also learnt from; no reference of lists that are judged is among
    those that are only learnt from."""

    def read(names: Sequence[str], references: Sequence[str], limit: int | None) -> list[NBest]:
        lists = []
        for name, of_file in zip(names, references or (None,) * len(names), strict=True):
            of_name = with_context(read_lists(name, form=verb.format, references=of_file), verb.context)
            lists += sample_lists(of_name, limit, seed=verb.training.seed)
        return lists

    train = read(verb.lists, verb.references, verb.limit)
    dev = read(verb.dev, verb.dev_references, verb.dev_limit or verb.limit)
    also = read(verb.also, (), verb.limit)
    if dev:
        return _apart(train, dev, "dev"), dev, []
    return train, [], _apart(also, train, "judged")


def _apart(learnt: list[NBest], judged: list[NBest], name: str) -> list[NBest]:
    """Of lists that are only learnt from those without a reference of the judged ones."""
    unseen = {same_reference(each.reference) for each in judged}
    kept = [each for each in learnt if same_reference(each.reference) not in unseen]
    left = len(learnt) - len(kept)
    if left:
        say(f"energylm: {left:,} training lists have the reference of a {name} list and are left out")
    recordings, of_judged = (set(map(recording_of, lists)) for lists in (kept, judged))
    known = sum(recording_of(each) in recordings for each in judged)
    if known and len(of_judged) > 1:  # otherwise their names are mere numbers
        say(
            f"energylm: {known:,} of {len(judged):,} {name} lists come from recordings that are learnt from as well, "
            f"so they say more good of the result than new recordings will; give {name} lists of other recordings"
        )
    return kept
