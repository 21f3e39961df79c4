"""The work of `energylm rerank`: files of n-best lists scored, λ tuned on dev, measured against the 1-best.

Every file is scored once, however often it is named. With an output folder a report is written, the chosen hypotheses
of each set as `best-1.tsv`, `best-2.tsv` …, what `rerank OUTPUT` chooses by of other lists as `reranker.json`, and the
scores of finished blocks are kept (`jobs.kept_blocks`), so that a killed run goes on where it stopped. They are known
by the model, how it scores and the texts, not by paths: other λ, other sets and other references find the scores again;
another model, casing or choice of lists does not.

Lists that a model of `rerank train` learnt from have the scores that its run kept (`UnseenScores`), of energies that
did not learn from them: λ of such dev lists are cross-fitted, whatever other scorers the model stands beside.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from energylm.bundles.known_models import model_of_run
from energylm.bundles.model_folder import MANIFEST
from energylm.bundles.reranker import (
    ListBlock,
    ListBlockScores,
    Reranked,
    by_risk,
    check_references,
    gathered_scores,
    hypothesis_statistics,
    list_blocks,
    rerank_scored,
    score_block,
    tune_scored,
    tune_sharpness,
)
from energylm.config.cloze import EXACT, MBR, Casing, NamedScorer, RerankSet
from energylm.data.nbest import NBest, name_of, read_lists, recognisers_best, sample_lists, with_context
from energylm.errors import ModelError
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, closed_share, metric_called, paired_bootstrap
from energylm.estimators.weight_tuning import ListScores
from energylm.files import folder_lock, read_json, sha256_of_json, write_json, write_text
from energylm.jobs.engine import Engine, open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.records import Record
from energylm.report.report import write_report
from energylm.search.minimum_risk import pairwise_costs
from energylm.verbs.cloze.rerank import MODEL_FOLDER, RERANKER_FILE, Rerank, saved_reranker
from energylm.verbs.cloze.rerank_report import (
    RerankResult,
    SetOutcome,
    best_lines,
    best_members,
    changed_choices,
    rerank_sections,
)
from energylm.verbs.cloze.score import ScoreWorker, check_scorer, scorer_identity, scorer_place

UNSEEN_FILE = "unseen.json"  # of a folder of `rerank train`


@dataclass(frozen=True)
class ScoredFile:
    """A file of lists with all that is known of it."""

    lists: list[NBest]
    scores: ListScores
    statistics_UHM: Floats | None  # None where no list has a reference
    costs_UHH: Floats | None = None  # of every hypothesis against every other, for minimum risk


def rerank(verb: Rerank, job: Job) -> RerankResult:
    """Rerank every set; measured where its lists have references."""
    verb = with_weights(verb)
    with nullcontext() if job.output is None else folder_lock(job.output), open_engine(job.engine) as engine:
        return _rerank(verb, job.output, engine)


def _rerank(verb: Rerank, output: Path | None, engine: Engine) -> RerankResult:
    files = read_files(verb)
    _hint_at_casing(verb, files)
    _warn_of_known_lists(verb, files)
    metric = metric_called(verb.metric)
    statistics = {
        file: hypothesis_statistics(lists, metric) if _is_measured(file, lists, verb) else None
        for file, lists in files.items()
    }
    others = [Path(folder) for folder in verb.scores]
    scorers = [score_files(scorer, files, output, engine, others=others) for scorer in verb.all_scorers]
    names = [scorer.name for scorer in scorers]
    known = {}
    for file, lists in files.items():
        scored = [scorer.scores[file] for scorer in scorers]
        scores = gathered_scores(
            lists, scored, names=names, length_normalisation=verb.length_normalisation, terms=verb.term
        )
        known[file] = ScoredFile(lists, scores, statistics[file], _costs(lists, verb))
    sets: dict[str, SetOutcome] = {}
    chosen = []
    for of_set in verb.all_sets:
        outcome, best = _rerank_set(of_set, known, metric, verb)
        chosen.append(tuple(best))
        if outcome is not None:
            sets[_new_name(Path(outcome.name).stem, sets)] = outcome
    result = RerankResult(
        sets=sets,
        chosen=tuple(chosen),
        scorers=tuple(names),
        convention="; ".join([metric.convention, _formula(verb), *(scorer.convention for scorer in scorers)]),
        hypotheses=sum(len(of_list.hypotheses) for lists in files.values() for of_list in lists),
        seconds=sum(scorer.seconds for scorer in scorers),
        lists=sum(map(len, files.values())),
    )
    if output is None:
        return result
    return _write(result, output, verb, weighed=[*names, *verb.term])


def check_inputs(verb: Rerank) -> str:
    """Read every list and find every model without loading one; what would be done, in words."""
    verb, files = with_weights(verb), read_files(verb)
    for file, lists in files.items():
        if _is_measured(file, lists, verb):
            check_references(lists, metric=verb.metric.upper())
    for scorer in verb.all_scorers:
        check_scorer(scorer.model, scorer)
    sizes = [f"{len(lists):,} lists of {name_of(file.lists)}" for file, lists in files.items()]
    how = f"λ = {', '.join(map(str, verb.weight))}" if verb.weight else f"λ of {len(verb.grid.weights)} values"
    models = ", ".join(scorer.model for scorer in verb.all_scorers)
    return f"would score {', '.join(sizes)} with {models} and rerank them, {how}"


def with_weights(verb: Rerank) -> Rerank:
    """The same with the λ that its model was trained with, where these are asked for, read as it was read there."""
    if not verb.trained_weights:
        return verb
    folder, is_model = Path(str(verb.model)).parent, Path(str(verb.model)).name == MODEL_FOLDER
    saved = saved_reranker(folder) if is_model else {}
    if "alone" not in saved:
        raise ModelError(f"{verb.model} has no λ of `energylm rerank train` beside it; give --dev lists, or a --weight")
    scorers, weight = [NamedScorer(**each) for each in saved["scorers"]], tuple(saved["weight"])
    beside = [*(scorer.model for scorer in verb.all_scorers[1:]), *verb.term]
    trained = [*(scorer.model for scorer in scorers[1:]), *saved["term"]]
    if not beside:
        scorers, weight = scorers[:1], (saved["alone"],)
    elif beside != trained:
        raise ModelError(
            f"{folder} has λ of its model by itself and beside {', '.join(trained) or 'nothing'}, not beside "
            f"{', '.join(beside)}; give --dev lists, or a --weight for each"
        )
    own = {"model": None, "scorer": (), "scorers": tuple(scorers), "weight": weight, "trained_weights": False}
    return verb.model_copy(update=own)


def read_files(verb: Rerank) -> dict[RerankSet, list[NBest]]:
    """Every file of lists once, under the name of a set without dev."""
    files: dict[RerankSet, list[NBest]] = {}
    words = max((scorer.context for scorer in verb.all_scorers), default=0)
    for of_set in verb.all_sets:
        for file in filter(None, (of_set.tuned_on, of_set.measured_on)):
            if file not in files:
                lists = read_lists(file.lists, form=verb.format, references=file.references)
                limit = file.limit or verb.limit
                files[file] = sample_lists(with_context(lists, words), limit, seed=verb.seed)
    return files


class ListScorer(ScoreWorker):
    """What a scorer says of blocks of lists."""

    by_word: ClassVar[bool] = False

    def __call__(self, block: ListBlock, *, progress: Progress) -> ListBlockScores:  # type: ignore[override]
        scored = score_block(self.scorer, block, by_word=self.by_word)
        progress.advance(len(block.names))
        return scored


class WordScorer(ListScorer):
    """And of each of their words."""

    by_word = True

    def __call__(self, block: ListBlock, *, progress: Progress) -> ListBlockScores:  # type: ignore[override]
        if not getattr(self.scorer.reader, "scores_tokens", True):
            raise ModelError(f"{self.scorer.name} scores texts as a whole; give a model that scores words")
        return super().__call__(block, progress=progress)


FORM = BlockForm(asdict, ListBlockScores.to_json, ListBlockScores.from_json, size=lambda block: len(block.names))


@dataclass
class ScorerOutcome:
    """What one scorer says of the lists of each file, by hypothesis with text."""

    name: str
    convention: str
    scores: dict[RerankSet, list[list[float]]]
    seconds: float = 0.0
    words: list[list[list[float]]] = field(default_factory=list)  # of all files, one after the other, if asked for


def score_files(
    scorer: NamedScorer,
    files: Mapping[RerankSet, list[NBest]],
    output: Path | None,
    engine: Engine,
    *,
    others: Sequence[Path] = (),
    worker: type[ListScorer] = ListScorer,
) -> ScorerOutcome:
    """Every list of every file; blocks that an output folder has already, or one of `others`, are not scored again."""
    model = scorer_place(scorer.model)
    with engine.pool(partial(worker, model, scorer), models=[model]) as pool:
        outcome = ScorerOutcome(**pool.facts(), scores={file: [] for file in files})
        if scorer.context:
            outcome.convention += f"; after {scorer.context} words at most of what was heard before"
        for file, lists in files.items():
            unseen = UnseenScores.of(scorer) if not worker.by_word else None
            known = unseen.of_lists(lists) if unseen else {}
            scored = [of_list for row, of_list in enumerate(lists) if row not in known]
            identity = kept_identity(scorer, scored) | ({"by": "word"} if worker.by_word else {})
            kept = KeptBlocks(output, (output or others) and identity, FORM, others=others)
            what, scores = f"scoring {Path(name_of(file.lists)).name} with {outcome.name}", []
            with progress(what, total=len(scored), unit="list") as bar:
                for block in kept.run(pool, list_blocks(scored, context=scorer.context), progress=bar):
                    scores += block.scores
                    outcome.words += block.words or []
                    outcome.seconds += block.seconds
            rest = iter(scores)
            outcome.scores[file] = [known[row] if row in known else next(rest) for row in range(len(lists))]
            if unseen and known:
                outcome.seconds += len(known) * unseen.seconds_a_list
                say(
                    f"energylm: {outcome.name} learnt from {len(known):,} lists of {Path(file.lists).name}; for these "
                    "its training kept the scores of energies that did not, which are taken"
                )
    return outcome


@dataclass(frozen=True)
class UnseenScores(Record):
    """What energies that did not learn from a list say of it, kept by `rerank train` beside the energy that learnt from
    all."""

    casing: Casing
    context: int
    seconds_a_list: float
    scores: dict[str, list[float]]

    @classmethod
    def named(cls, own: NamedScorer, lists: Sequence[NBest], scores: Sequence[list[float]], seconds: float) -> Self:
        names = [unseen_name(of_list, own.context) for of_list in lists]
        return cls(own.casing, own.context, seconds / len(lists), dict(zip(names, scores, strict=True)))

    def save(self, folder: Path) -> None:
        write_json(folder / UNSEEN_FILE, self.to_json())

    @classmethod
    def of(cls, scorer: NamedScorer) -> Self | None:
        """Those of a scorer's own run, where it reads as it was judged."""
        model = model_of_run(scorer.model)
        file = model.parent / UNSEEN_FILE
        kept = cls.from_json(read_json(file)) if model.name == MODEL_FOLDER and file.is_file() else None
        return kept if kept and (kept.casing, kept.context) == (scorer.casing, scorer.context) else None

    def of_lists(self, lists: Sequence[NBest]) -> dict[int, list[float]]:
        """By the places of those that are known."""
        names = {row: unseen_name(of_list, self.context) for row, of_list in enumerate(lists)}
        return {row: self.scores[name] for row, name in names.items() if name in self.scores}


def unseen_name(of_list: NBest, context: int) -> str:
    texts = [hypothesis.text for hypothesis in of_list.hypotheses]
    return sha256_of_json([of_list.utterance, of_list.heard(context), texts])


def kept_identity(scorer: NamedScorer, lists: list[NBest]) -> dict[str, Any]:
    texts = [[hypothesis.text for hypothesis in of_list.hypotheses] for of_list in lists]
    if scorer.context:  # a file may say other words for the same lists
        texts += [of_list.context.split()[-scorer.context :] for of_list in lists]
    settings = scorer.model_dump(mode="json", exclude={"model", "device", "batch_tokens"})
    return {"task": "rerank", "how": settings, "model": scorer_identity(scorer.model), "texts": sha256_of_json(texts)}


def _is_measured(file: RerankSet, lists: list[NBest], verb: Rerank) -> bool:
    """Whether lists are measured: λ is tuned on them, or at least one has a reference (then all must have one)."""
    is_dev = any(of_set.tuned_on == file for of_set in verb.all_sets)
    return is_dev or any(of_list.reference is not None for of_list in lists)


def _rerank_set(
    of_set: RerankSet, known: dict[RerankSet, ScoredFile], metric: AdditiveMetric, verb: Rerank
) -> tuple[SetOutcome | None, list[Reranked]]:
    name, file = name_of(of_set.lists), known[of_set.measured_on]
    tuning, weights, sharpness = None, verb.weight, verb.sharpness
    if of_set.tuned_on is not None:
        dev = known[of_set.tuned_on]
        assert dev.statistics_UHM is not None
        search = verb.search if len(dev.scores.scores_SUH) else EXACT  # there is no λ to try
        tuning = tune_scored(dev.scores, dev.statistics_UHM, metric, grid=verb.grid, search=search)
        weights = tuning.weights
        if dev.costs_UHH is not None and sharpness is None:
            sharpness, _ = tune_sharpness(dev.scores, weights, dev.costs_UHH, dev.statistics_UHM, metric)
    if file.costs_UHH is None:
        chosen = rerank_scored(file.lists, file.scores, weights)
    else:
        sharpness = sharpness or 1.0
        chosen = rerank_scored(file.lists, by_risk(file.scores, weights, file.costs_UHH, sharpness=sharpness), ())
    empty = sum(not hypothesis.text.strip() for of_list in file.lists for hypothesis in of_list.hypotheses)
    if empty:
        say(f"energylm: {name}: {empty:,} empty hypotheses have no score and were not chosen")
    tied = sum(result.tied for result in chosen)
    if tied:
        say(f"energylm: {name}: {tied:,} lists had several best hypotheses; the recogniser's order decided")
    if file.statistics_UHM is None:
        return None, chosen
    rows_U = np.arange(len(file.lists))
    before_U = np.array([recognisers_best(of_list) for of_list in file.lists])
    after_U = np.array([result.order[0] for result in chosen])
    statistics_UHM, resampling = file.statistics_UHM, {"resamples": verb.resamples, "seed": verb.seed}
    first_UM, second_UM = statistics_UHM[rows_U, before_U], statistics_UHM[rows_U, after_U]
    comparison = paired_bootstrap(first_UM, second_UM, metric, **resampling)
    oracle_UM = statistics_UHM[rows_U, best_members(file.lists, statistics_UHM, metric)]
    outcome = SetOutcome(
        name=name,
        lists=len(file.lists),
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        weights=weights,
        dev=None if of_set.dev is None else name_of(of_set.dev),
        tuning=tuning,
        one_best=comparison.first,
        reranked=comparison.second,
        difference=comparison.difference,
        p_value=comparison.p_value,
        resamples=comparison.resamples,
        oracle=float(metric.value(oracle_UM.sum(0))),
        closed=closed_share(first_UM, second_UM, oracle_UM, metric, **resampling),
        sharpness=sharpness,
        changes=tuple(changed_choices(file.lists, before_U.tolist(), after_U.tolist(), metric.worth(statistics_UHM))),
        tied=tied,
        empty=empty,
    )
    return outcome, chosen


def _new_name(name: str, taken: Mapping[str, Any]) -> str:
    """Sets of one name are told apart by a number."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    return next(each for each in names if each not in taken)


def _write(result: RerankResult, output: Path, verb: Rerank, *, weighed: Sequence[str]) -> RerankResult:
    for number, of_set in enumerate(result.chosen, start=1):
        write_text(output / f"best-{number}.tsv", best_lines(of_set))
    if not result.sets:
        return result
    ways = {(outcome.weights, outcome.sharpness) for outcome in result.outcomes}
    if len(ways) == 1 and not (output / MODEL_FOLDER).exists():  # which is a run's that keeps its own
        write_json(output / RERANKER_FILE, _as_tuned(verb, *ways.pop()))
    sections = rerank_sections(result.table, result.outcomes, weighed, shown=verb.shown_changes)
    title = f"Reranking with {', '.join(weighed) or 'minimum risk'}"
    return replace(result, report=write_report(output, title=title, sections=sections))


def _as_tuned(verb: Rerank, weights: Sequence[float], sharpness: float | None) -> dict[str, Any]:
    """Options of `rerank OUTPUT FILE`, which chooses as it was chosen here."""
    scorers = [each.model_copy(update={"model": scorer_place(each.model)}) for each in verb.all_scorers]
    ways = ("term", "choose", "utility", "length_normalisation", "metric", "search")
    return {
        "scorers": [each.model_dump(mode="json", exclude_defaults=True) for each in scorers],
        "weight": list(weights),
        **({} if sharpness is None else {"sharpness": sharpness}),
        **verb.model_dump(mode="json", include=set(ways)),
    }


def _costs(lists: list[NBest], verb: Rerank) -> Floats | None:
    if verb.choose != MBR:
        return None
    texts = [[hypothesis.text for hypothesis in of_list.hypotheses] for of_list in lists]
    return pairwise_costs(texts, utility=verb.utility or verb.metric)


def _formula(verb: Rerank) -> str:
    by = {"none": "", "word": ", divided by words", "character": ", divided by characters"}
    limit = "" if verb.limit is None else f", {verb.limit} lists of each file at random (seed {verb.seed})"
    terms = "".join(f" + λ·{term}" for term in verb.term)
    risk = f", chosen by the least expected cost ({verb.utility or verb.metric})" if verb.choose == MBR else ""
    return f"f + λ·score{terms}{by[verb.length_normalisation]}{risk}{limit}"


def _warn_of_known_lists(verb: Rerank, files: Mapping[RerankSet, list[NBest]]) -> None:
    """λ of lists that a model has learnt by heart trust it too much; files are known by their names."""
    for scorer in verb.all_scorers:
        manifest, unseen = model_of_run(scorer.model) / MANIFEST, UnseenScores.of(scorer)
        facts = read_json(manifest).get("provenance", {}) if manifest.is_file() else {}
        for dev in sorted({each.tuned_on for each in verb.all_sets if each.tuned_on is not None}, key=str):
            learnt = Path(dev.lists).name in facts.get("trained_on", ())
            known = unseen.of_lists(files[dev]) if unseen else {}
            if learnt and len(known) < len(files[dev]):
                say(
                    f"energylm: {scorer.model} learnt from {Path(dev.lists).name}, so λ of these lists trust it too "
                    "much; take the cross-fitted ones by --trained-weights, or dev lists that it does not know"
                )


def _hint_at_casing(verb: Rerank, files: dict[RerankSet, list[NBest]]) -> None:
    texts = [of_list.hypotheses[0].text for lists in files.values() for of_list in lists]
    cased = [scorer.model for scorer in verb.all_scorers if scorer.casing == "keep"]
    caseless = ("frequency:", "lexicon:", "recall:")
    kept = [model for model in cased if not model.startswith(caseless)]
    if kept and any(text.isupper() for text in texts) and not any(text != text.upper() for text in texts):
        say(
            f"energylm: the lists are all in upper case and {', '.join(kept)} will read them so; a model of ordinary "
            "text does better with --casing lower or --casing sentence"
        )
