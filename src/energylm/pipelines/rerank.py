"""Rerank files of n-best lists, tune λ on dev, measure against the 1-best: `energylm rerank`.

Every file is scored once, however often it is named. With `output` the scores are kept there (`kept_scores`), a report
is written, and the chosen hypotheses of each set as `best-1.tsv`, `best-2.tsv` …
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import absolute_place
from energylm.bundles.reranker import (
    ListBlock,
    NamedScores,
    Reranked,
    Reranker,
    Scored,
    check_references,
    hypothesis_statistics,
    list_blocks,
    score_block,
)
from energylm.bundles.scorer import Scorer, usable_device
from energylm.bundles.scorer_kind import check_method, kind_of
from energylm.config.engine import HERE, EngineConfig
from energylm.config.rerank import NamedScorer, RerankConfig, RerankSet
from energylm.data.formats.nbest import NBest
from energylm.data.nbest import name_of, read_lists, sample_lists
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, metric_called
from energylm.estimators.weight_tuning import ListScores
from energylm.evaluation.rerank_outcome import SetOutcome, set_outcome
from energylm.evaluation.rerank_report import rerank_sections, rerank_table
from energylm.files import folder_lock, write_text
from energylm.jobs.engine import Engine, open_engine
from energylm.pipelines.kept_scores import KeptScores
from energylm.progress import Progress, progress, say
from energylm.report.report import write_report
from energylm.tables import Table


@dataclass(frozen=True)
class RerankRun:
    outcomes: tuple[SetOutcome, ...]  # of the sets that have references
    chosen: tuple[tuple[Reranked, ...], ...]  # of every set
    scorers: tuple[str, ...]
    convention: str
    hypotheses: int
    seconds: float  # of scoring, whenever that was
    report: Path | None = None

    @property
    def table(self) -> Table:
        return rerank_table(self.outcomes, convention=self.convention)

    @property
    def hypotheses_per_second(self) -> float:
        return self.hypotheses / max(self.seconds, 1e-9)

    def summary(self) -> str:
        return (
            f"{self.hypotheses:,} hypotheses scored with {', '.join(self.scorers)} in {self.seconds:,.1f} s, "
            f"{self.hypotheses_per_second:,.1f} a second"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "sets": [outcome.to_json() for outcome in self.outcomes],
            "scorers": list(self.scorers),
            "convention": self.convention,
            "hypotheses": self.hypotheses,
            "seconds": self.seconds,
            "hypotheses_per_second": self.hypotheses_per_second,
            "chosen": [[one.to_json() for one in of_set] for of_set in self.chosen],
        }


@dataclass(frozen=True)
class _File:
    """A file of lists with all that is known of it."""

    lists: list[NBest]
    scores: ListScores
    statistics_UHM: Floats | None  # None where no list has a reference


def rerank(config: RerankConfig, *, output: Path | None = None, engine: EngineConfig = HERE) -> RerankRun:
    """Rerank every set of `config`; measured where its lists have references."""
    with nullcontext() if output is None else folder_lock(output), open_engine(engine) as opened:
        return _rerank(config, output, opened)


def _rerank(config: RerankConfig, output: Path | None, engine: Engine) -> RerankRun:
    files = read_files(config)
    _hint_at_casing(config, files)
    metric = metric_called(config.metric)
    statistics = {
        place: hypothesis_statistics(lists, metric) if _is_judged(lists, place, config) else None
        for place, lists in files.items()
    }
    scored = {place: _scored(config, lists, output) for place, lists in files.items()}
    scorers = [
        _score(one, {place: (lists, scored[place][number]) for place, lists in files.items()}, engine)
        for number, one in enumerate(config.scorers)
    ]
    reranker = Reranker(scorers, weight=config.weights or 0.0, length_normalisation=config.length_normalisation)
    known = {
        place: _File(lists, reranker.score_lists(lists, scored=scored[place]), statistics[place])
        for place, lists in files.items()
    }
    found = [_rerank_set(reranker, one, known, metric, config) for one in config.sets]
    run = RerankRun(
        outcomes=tuple(outcome for outcome, _ in found if outcome is not None),
        chosen=tuple(tuple(chosen) for _, chosen in found),
        scorers=tuple(scorer.name for scorer in scorers),
        convention="; ".join([metric.convention, _formula(config), *(scorer.convention for scorer in scorers)]),
        hypotheses=sum(len(of_list.hypotheses) for lists in files.values() for of_list in lists),
        seconds=sum(one.seconds for of_file in scored.values() for one in of_file),
    )
    return run if output is None else _write(run, output, shown=config.shown)


def check_inputs(config: RerankConfig) -> str:
    """Read every list and find every model without loading one; what would be done, in words."""
    files = read_files(config)
    for place, lists in files.items():
        if _is_judged(lists, place, config):
            check_references(lists, metric=config.metric.upper())
    for one in config.scorers:
        check_method(kind_of(one.model), one, name=one.model)
        usable_device(one.device)
    sizes = [f"{len(lists):,} lists of {name_of(place.lists)}" for place, lists in files.items()]
    how = f"λ = {', '.join(map(str, config.weights))}" if config.weights else f"λ of {len(config.grid.weights)} values"
    return (
        f"would score {', '.join(sizes)} with {', '.join(one.model for one in config.scorers)} and rerank them, {how}"
    )


def read_files(config: RerankConfig) -> dict[RerankSet, list[NBest]]:
    """Every file of lists once, under the name of a set without dev."""
    files: dict[RerankSet, list[NBest]] = {}
    for one in config.sets:
        for place in _places(one):
            if place not in files:
                lists = read_lists(place.lists, form=config.format, references=place.references)
                files[place] = sample_lists(lists, config.limit, seed=config.seed)
    return files


def best_lines(chosen: Sequence[Reranked]) -> str:
    return "".join(f"{one.utterance}\t{one.best}\n" for one in chosen)


def _scored(config: RerankConfig, lists: list[NBest], output: Path | None) -> list[Scored]:
    """For each scorer what is known of `lists` from an earlier run into `output`."""
    return [Scored() if output is None else KeptScores.open(output, one, lists) for one in config.scorers]


class ListScorer:
    """What a scorer says of blocks of lists, as `Scored`."""

    def __init__(self, place: str, config: NamedScorer) -> None:
        self._scorer = Scorer.from_pretrained(place, config=config)

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._scorer.name, "convention": self._scorer.convention}

    def __call__(self, block: ListBlock, *, progress: Progress) -> Scored:
        found = score_block(self._scorer, block)
        progress.advance(len(block.names))
        return found


def _score(scorer: NamedScorer, files: Mapping[RerankSet, tuple[list[NBest], Scored]], engine: Engine) -> NamedScores:
    """Fill in what one scorer has not said yet of each file's lists."""
    model = absolute_place(scorer.model)
    with engine.pool(partial(ListScorer, model, scorer), models=[model]) as pool:
        facts = pool.facts()
        for place, (lists, scored) in files.items():
            what = f"scoring {Path(name_of(place.lists)).name} with {facts['name']}"
            with progress(what, total=len(lists) - len(scored.scores), unit="list") as bar:
                for found in pool.run(list_blocks(lists, scored), progress=bar):
                    scored.add(found.scores, seconds=found.seconds)
    return NamedScores(**facts)


def _places(one: RerankSet) -> list[RerankSet]:
    dev = [] if one.dev is None else [RerankSet(lists=one.dev, references=one.dev_references)]
    return [*dev, RerankSet(lists=one.lists, references=one.references)]


def _is_judged(lists: list[NBest], place: RerankSet, config: RerankConfig) -> bool:
    """Whether lists are measured: λ is tuned on them, or at least one has a reference (then all must have one)."""
    is_dev = any(len(_places(one)) == 2 and _places(one)[0] == place for one in config.sets)
    return is_dev or any(one.reference is not None for one in lists)


def _rerank_set(
    reranker: Reranker, one: RerankSet, known: dict[RerankSet, _File], metric: AdditiveMetric, config: RerankConfig
) -> tuple[SetOutcome | None, list[Reranked]]:
    name = name_of(one.lists)
    *dev, place = _places(one)
    tuning = None
    if dev:
        on = known[dev[0]]
        assert on.statistics_UHM is not None
        tuning = reranker.tune_scored(on.scores, on.statistics_UHM, metric, grid=config.grid)
    file = known[place]
    chosen = reranker.rerank_lists(file.lists, scores=file.scores)
    empty = sum(not hypothesis.text.strip() for of_list in file.lists for hypothesis in of_list.hypotheses)
    if empty:
        say(f"energylm: {name}: {empty:,} empty hypotheses have no score and were not chosen")
    if tied := sum(result.tied for result in chosen):
        say(f"energylm: {name}: {tied:,} lists had several best hypotheses; the recogniser's order decided")
    if file.statistics_UHM is None:
        return None, chosen
    outcome = set_outcome(
        file.lists,
        chosen,
        file.statistics_UHM,
        metric,
        name=name,
        dev=None if one.dev is None else name_of(one.dev),
        weights=reranker.weights,
        tuning=tuning,
        resamples=config.resamples,
        seed=config.seed,
    )
    return outcome, chosen


def _write(run: RerankRun, output: Path, *, shown: int) -> RerankRun:
    for number, of_set in enumerate(run.chosen, start=1):
        write_text(output / f"best-{number}.tsv", best_lines(of_set))
    if not run.outcomes:
        return run
    sections = rerank_sections(run.table, run.outcomes, run.scorers, shown=shown)
    title = f"Reranking with {', '.join(run.scorers)}"
    return replace(run, report=write_report(output, title=title, sections=sections))


def _formula(config: RerankConfig) -> str:
    by = {"none": "", "word": ", divided by words", "character": ", divided by characters"}
    limit = "" if config.limit is None else f", {config.limit} lists of each file at random (seed {config.seed})"
    return f"f + λ·score{by[config.length_normalisation]}{limit}"


def _hint_at_casing(config: RerankConfig, files: dict[RerankSet, list[NBest]]) -> None:
    texts = [of_list.hypotheses[0].text for lists in files.values() for of_list in lists]
    kept = [one.model for one in config.scorers if one.casing == "keep"]
    if kept and any(text.isupper() for text in texts) and not any(text != text.upper() for text in texts):
        say(
            f"energylm: the lists are all in upper case and {', '.join(kept)} will read them so; a model of ordinary "
            "text does better with --casing lower or --casing sentence"
        )
