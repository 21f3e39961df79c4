"""Rerank n-best lists with language models: f + Σ λ·score, λ given or tuned. `energylm.Reranker`.

    chosen = argmax_h  f_h + Σ_s λ_s·score_s(h)                                              Clark et al. 2020, §3.2

The words or characters of a hypothesis can be counted as one more score each (`terms`), and the choice can be made by
expected errors against all rivals instead (`by_risk`).

f is the recogniser's (or translator's) own score. Ties keep the recogniser's order. An empty hypothesis has no score
and is chosen only where all of a list are empty. A hypothesis without a score of its own, a score or λ that is no
number, and a list without hypotheses are refused.

Relations  `scorer` gives the scores, `estimators.weight_tuning` the choice and the tuning, `search.minimum_risk` risks.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, cast, get_args

import numpy as np

from energylm.bundles.devices import Device, DType
from energylm.bundles.hub import OnHub
from energylm.bundles.model_folder import open_folder, save_model
from energylm.bundles.scorer import Scorer
from energylm.config.cloze import (
    EXACT,
    GRID,
    LengthNormalisation,
    LengthTerm,
    MetricName,
    ScorerConfig,
    WeightGrid,
    WeightSearch,
)
from energylm.data.nbest import Hypothesis, NBest, hypothesis, nbest
from energylm.errors import ConfigError, DataError
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, metric_called
from energylm.estimators.weight_tuning import ListScores, Tuning, search_weights, smooth_weights, tune_weights
from energylm.progress import progress, say
from energylm.records import Record
from energylm.registry import FITS
from energylm.search.minimum_risk import expected_costs

KIND = "reranker"
LISTS_AT_ONCE = 64  # scored together, so that progress shows; their trees or copies are sorted by size
FEW_LISTS = 50
NAMED_LISTS = 5  # in one message
SHARPNESSES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0, 8.0)  # of the posterior, that dev lists choose from


@dataclass(frozen=True)
class Reranked(Record):
    """A list in its new order; `order` are indices in the old one, `totals` go with them."""

    utterance: str
    best: str
    order: tuple[int, ...]
    totals: tuple[float, ...]  # f + Σ λ·score of each, in the new order; −inf for an empty hypothesis
    tied: bool  # whether another hypothesis had the same total as the best


@dataclass(frozen=True)
class ListBlock:
    """Lists that are scored together: of each the texts that are not empty, what messages call it, and what was said
    before."""

    texts: list[list[str]]
    names: list[str]
    contexts: list[str]


@dataclass(frozen=True)
class ListBlockScores(Record):
    """What one scorer says of a block: a score for each text of each list; and how long it took."""

    scores: list[list[float]]
    seconds: float
    words: list[list[list[float]]] | None = None  # of each text, where that is asked for


def list_blocks(lists: Sequence[NBest], *, context: int = 0) -> Iterator[ListBlock]:
    """`context` is how many words of what was said before a scorer reads."""
    for start in range(0, len(lists), LISTS_AT_ONCE):
        block = lists[start : start + LISTS_AT_ONCE]
        texts = [[of_list.hypotheses[index].text for index in _filled(of_list)] for of_list in block]
        contexts = [of_list.heard(context) for of_list in block]
        yield ListBlock(texts, [of_list.utterance for of_list in block], contexts)


def score_block(scorer: Scorer, block: ListBlock, *, by_word: bool = False) -> ListBlockScores:
    """A hypothesis after its context: the words of the context are read and not counted. Who scores texts as a whole
    reads none."""
    begun = time.perf_counter()
    contexts = block.contexts if getattr(scorer.reader, "scores_tokens", True) else [""] * len(block.texts)
    pairs = zip(contexts, block.texts, strict=True)
    read = [[f"{context} {text}" if context else text for text in texts] for context, texts in pairs]
    given = [len(context.split()) for context in contexts]
    scored = list(zip(given, scorer.list_scores(read, names=block.names), strict=True))
    scores = [[text.after(count) for text in of_list] for count, of_list in scored]
    words = [[list(text.word_scores[count:]) for text in of_list] for count, of_list in scored] if by_word else None
    return ListBlockScores(scores, time.perf_counter() - begun, words)


def gathered_scores(
    lists: Sequence[NBest],
    scored: Sequence[Sequence[Sequence[float]]],
    *,
    names: Sequence[str],
    length_normalisation: LengthNormalisation = "none",
    terms: Sequence[LengthTerm] = (),
) -> ListScores:
    """What every scorer says of every hypothesis, as arrays, and the `terms` after them; empty hypotheses are left out.
    `scored` is by scorer, list and hypothesis with text, `names` are the scorers'."""
    shape = (len(lists), max((len(of_list.hypotheses) for of_list in lists), default=1))
    base_UH, length_UH = np.full(shape, -np.inf), np.ones(shape)
    scores_SUH = np.zeros((len(scored) + len(terms), *shape))
    for row, of_list in enumerate(lists):
        filled = _filled(of_list)
        for index in filled:
            hypothesis = of_list.hypotheses[index]
            base_UH[row, index] = hypothesis.score
            length_UH[row, index] = _LENGTHS[length_normalisation](hypothesis.text)
            for number, term in enumerate(terms, start=len(scored)):
                scores_SUH[number, row, index] = _LENGTHS[term](hypothesis.text)
        for number, (name, known) in enumerate(zip(names, scored, strict=True)):
            _check_scores(known[row], len(filled), scorer=name, utterance=of_list.utterance)
            scores_SUH[number, row, filled] = known[row]
    return ListScores(base_UH, scores_SUH, length_UH)


def rerank_scored(lists: Sequence[NBest], scores: ListScores, weights: Sequence[float]) -> list[Reranked]:
    """The lists in the order of f + Σ λ·score."""
    _, tied_U = scores.choose(weights)
    totals_UH, order_UH = scores.totals(weights), scores.order(weights)
    results = []
    for of_list, totals_H, order_H, tied in zip(lists, totals_UH, order_UH, tied_U, strict=True):
        order = order_H[: len(of_list.hypotheses)]
        best, totals = of_list.hypotheses[order[0]].text, tuple(totals_H[order].tolist())
        results.append(Reranked(of_list.utterance, best, tuple(order.tolist()), totals, tied=bool(tied)))
    _say_excluded(
        [
            result.utterance
            for result, base_H in zip(results, scores.base_UH, strict=True)
            if result.totals[0] == -math.inf and (base_H > -math.inf).any()
        ]
    )
    return results


def _say_excluded(utterances: Sequence[str]) -> None:
    """Lists none of whose hypotheses is possible: a constraint excludes all, or a model gives all the probability 0."""
    if utterances:
        more = f" and {len(utterances) - NAMED_LISTS:,} more" if len(utterances) > NAMED_LISTS else ""
        say(
            f"energylm: all hypotheses of {', '.join(map(repr, utterances[:NAMED_LISTS]))}{more} are excluded (a score "
            "of −inf), so they stay in the recogniser's order; loosen the constraint, or give longer lists"
        )


def by_risk(scores: ListScores, weights: Sequence[float], costs_UHH: Floats, *, sharpness: float) -> ListScores:
    """Lists whose hypotheses are judged by their expected costs (`search.minimum_risk`) alone: no weights are left."""
    risk_UH = expected_costs(scores.totals(weights), costs_UHH, sharpness=sharpness)
    return ListScores(-risk_UH, np.zeros((0, *risk_UH.shape)), np.ones(risk_UH.shape))


def tune_sharpness(
    scores: ListScores, weights: Sequence[float], costs_UHH: Floats, statistics_UHM: Floats, metric: AdditiveMetric
) -> tuple[float, float]:
    """The sharpness whose minimum-risk choices are best by the metric, the highest of equals; and that metric."""
    rows_U, values = np.arange(len(statistics_UHM)), []
    for sharpness in SHARPNESSES:
        chosen_U, _ = by_risk(scores, weights, costs_UHH, sharpness=sharpness).choose(())
        values.append(float(metric.value(statistics_UHM[rows_U, chosen_U].sum(0)[None])[0]))
    sign = 1 if metric.lower_is_better else -1
    best = min(range(len(values)), key=lambda index: (sign * values[index], -SHARPNESSES[index]))
    return SHARPNESSES[best], values[best]


def tune_scored(
    scores: ListScores,
    statistics_UHM: Floats,
    metric: AdditiveMetric,
    *,
    grid: WeightGrid,
    search: WeightSearch = GRID,
) -> Tuning:
    """λ chosen by the metric, with all that was tried; what speaks against it is said."""
    tuning = found_weights(scores, statistics_UHM, metric, grid=grid, search=search)
    if tuning.lists < FEW_LISTS:
        say(f"energylm: λ was tuned on {tuning.lists} lists only; another dev set might give quite another λ")
    if search == GRID and tuning.on_the_edge:
        say(f"energylm: the best λ is the highest of the grid, {grid.highest}; a higher one might be better still")
    return tuning


def found_weights(
    scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric, *, grid: WeightGrid, search: WeightSearch
) -> Tuning:
    if _one_of(WeightSearch, search, "search") == GRID:
        return tune_weights(scores, statistics_UHM, metric, grid=grid.weights)
    find = search_weights if search == EXACT else smooth_weights
    return find(scores, statistics_UHM, metric)


class Reranker(OnHub):
    """`weight` is λ: one number for all scorers (terms then have 0), or one for each scorer and each term. `context` is
    how many words of what was heard before a list the scorers read (`NBest.context`; `with_context` fills it in)."""

    report: Record | None = None  # what `fit` tells of the tuning
    provenance: Mapping[str, Any] = MappingProxyType({})  # how λ came about

    def __init__(
        self,
        scorer: Scorer | Sequence[Scorer],
        *,
        weight: float | Sequence[float] = 0.5,
        length_normalisation: LengthNormalisation = "none",
        terms: Sequence[LengthTerm] = (),
        context: int = 0,
    ) -> None:
        self.scorers = _scorers(scorer)
        if not isinstance(context, int) or context < 0:
            raise ConfigError(f"context came as {context!r:.40}, expected a number of words; 0 reads none")
        self.context = context
        self.weights = _weights(weight)
        self.length_normalisation = _one_of(LengthNormalisation, length_normalisation, "length_normalisation")
        self.terms = tuple(_one_of(LengthTerm, term, "a term") for term in terms)
        if self.scorers and len(self.weights) == 1:
            self.weights = self.weights * len(self.scorers) + (0.0,) * len(self.terms)
        if not self.scorers or len(self.weights) != len(self.scorers) + len(self.terms):
            and_terms = f" and {len(self.terms)} terms" if self.terms else ""
            raise ConfigError(
                f"{len(self.weights)} weights came for {len(self.scorers)} scorers{and_terms}; give one for each"
            )

    @classmethod
    def fit(
        cls,
        lists: Any,
        scorer: Any,
        *,
        metric: MetricName = "wer",
        grid: WeightGrid | None = None,
        length_normalisation: LengthNormalisation = "none",
        terms: Sequence[LengthTerm] = (),
        search: WeightSearch = GRID,
        context: int = 0,
    ) -> "Reranker":
        """λ tuned on lists with references, a file or `NBest` records, for a `Scorer` or several, or their names. Of a
        file each list gets the last `context` words of what was heard before in the same recording. The report tells
        the metric of the first best, of the tuned choice, and of λ tuned on the other half of the lists."""
        how = {"metric": metric, "grid": grid, "terms": terms, "search": search, "context": context}
        return cast(Reranker, FITS.get("reranker")(lists, scorer, length_normalisation=length_normalisation, **how))

    @classmethod
    def learn(cls, lists: Any, *, init: str | Path, output: str | Path | None = None, **options: Any) -> "Reranker":
        """An energy that learns from lists with references (files, or `NBest`), by the options of `rerank train`."""
        return cast(Reranker, FITS.get("list-energy")(lists, init=init, output=output, **options))

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path, *, device: Device = None, dtype: DType = None) -> Self:
        """The reranker that `save_pretrained` wrote, or one of the hub."""
        problem = "holds no reranker (its kind: {kind}); give a folder that Reranker.save_pretrained wrote"
        location, manifest = open_folder(path_or_name, [KIND], problem)
        scorers = [
            Scorer.from_pretrained(
                location / f"scorer_{at}", config=ScorerConfig(**options), device=device, dtype=dtype
            )
            for at, options in enumerate(manifest["scorers"], start=1)
        ]
        shape = {name: manifest[name] for name in ("length_normalisation", "terms", "context") if name in manifest}
        reranker = cls(scorers, weight=manifest["weight"], **shape)
        reranker.provenance = manifest["provenance"]
        return reranker

    def save_pretrained(self, folder: str | Path) -> None:
        """Write λ, how it came about, and the models of all scorers, each a folder inside."""
        saved = [scorer.saved_as() for scorer in self.scorers]
        facts = {
            "weight": list(self.weights),
            "length_normalisation": self.length_normalisation,
            "terms": list(self.terms),
            "context": self.context,
            "scorers": [options for _, options in saved],
            "convention": [scorer.convention for scorer in self.scorers],
        }
        parts = {f"scorer_{number}": model for number, (model, _) in enumerate(saved, start=1)}
        save_model(folder, kind=KIND, facts=facts, provenance=self.provenance, parts=parts)

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """The same reranker, its scorers moved."""
        for scorer in self.scorers:
            scorer.to(device, dtype, batch_tokens)
        return self

    def rerank(
        self, hypotheses: NBest | Iterable[Hypothesis | tuple[str, float]], *, context: str | None = None
    ) -> Reranked:
        """One list: hypotheses with their own scores, as `Hypothesis` or pairs, e.g. a `zip`; after what was heard."""
        if context is not None and not self.context:
            raise ConfigError("a context came, but this reranker reads none; make it with Reranker(…, context=50)")
        of_list = hypotheses if isinstance(hypotheses, NBest) else _list(hypotheses, "the list")
        (reranked,) = self.rerank_lists([of_list if context is None else replace(of_list, context=context)])
        return reranked

    def rerank_lists(self, lists: Sequence[NBest], *, scores: ListScores | None = None) -> list[Reranked]:
        """Many lists; `scores` are what `score_lists` found, if that has been done already."""
        lists = _checked(lists)
        return rerank_scored(lists, scores or self.score_lists(lists), self.weights)

    def tune(
        self,
        dev: Sequence[NBest],
        *,
        grid: WeightGrid | None = None,
        metric: MetricName = "wer",
        search: WeightSearch = GRID,
    ) -> Tuning:
        """Choose λ by the metric on `dev`, whose lists need references; kept, and returned with all that was tried."""
        dev, measure = _checked(dev), metric_called(_one_of(MetricName, metric, "metric"))
        scores, statistics_UHM = self.score_lists(dev), hypothesis_statistics(dev, measure)
        tuning = tune_scored(scores, statistics_UHM, measure, grid=grid or WeightGrid(), search=search)
        self.weights = tuning.weights
        told = {"metric": measure.name, "lists": tuning.lists, "tuned": tuning.value, "convention": measure.convention}
        self.report, self.provenance = None, {"validation": told}
        return tuning

    def score_lists(self, lists: Sequence[NBest]) -> ListScores:
        """What every scorer says of every hypothesis; empty ones are left out."""
        lists, scored = _checked(lists), []
        if self.context and len(lists) > 1 and not any(of_list.context for of_list in lists):
            say("energylm: no list says what was heard before, which this reranker reads; `with_context` adds it")
        with progress("scoring lists", total=len(lists) * len(self.scorers), unit="list") as bar:
            for scorer in self.scorers:
                scores: list[list[float]] = []
                for block in list_blocks(lists, context=self.context):
                    scores += score_block(scorer, block).scores
                    bar.advance(len(block.names), note=scorer.name)
                scored.append(scores)
        names = [scorer.name for scorer in self.scorers]
        shape = {"length_normalisation": self.length_normalisation, "terms": self.terms}
        return gathered_scores(lists, scored, names=names, **shape)


def _words(text: str) -> int:
    return len(text.split())


_LENGTHS: dict[LengthNormalisation | LengthTerm, Callable[[str], int]] = {
    "none": lambda text: 1,
    "word": _words,
    "words": _words,
    "character": len,
    "characters": len,
}


def _scorers(given: Any) -> list[Scorer]:
    scorers = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for scorer in scorers:
        if not isinstance(scorer, Scorer):
            raise ConfigError(
                f"{scorer!r:.60} ({type(scorer).__name__}) came as a scorer, expected a Scorer; load a model with "
                "Scorer.from_pretrained(…), or wrap a TokenScorer of your own: Scorer(…)"
            )
    return scorers


def _one_of(names: Any, given: Any, what: str) -> Any:
    """`given`, if it is one of a literal type's names."""
    if given not in (known := get_args(names)):
        raise ConfigError(f"{what} {given!r} came, expected one of {', '.join(known)}")
    return given


def _weights(given: Any) -> tuple[float, ...]:
    """Every λ as a number."""
    weights = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for weight in weights:
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise ConfigError(f"λ came as {weight!r:.40}, expected a finite number; 0 leaves a scorer out")
    return tuple(map(float, weights))


def _checked(lists: Iterable[NBest]) -> list[NBest]:
    return [_list(of_list, f"list {number}") for number, of_list in enumerate(lists, start=1)]


def _list(given: Any, name: str) -> NBest:
    """An n-best list with at least one hypothesis, all of which have text and a score; `name` is for one without."""
    where, reference, members, context = name, None, given, ""
    if isinstance(given, NBest):
        name, reference, members, context = given.utterance, given.reference, given.hypotheses, given.context
        where = f"utterance {name!r}"
    cure = "give pairs (text, score), e.g. zip(texts, scores)"
    if isinstance(members, str | Mapping) or not isinstance(members, Iterable):
        raise DataError(f"{where} came as {members!r:.40} ({type(members).__name__}), expected hypotheses; {cure}")
    hypotheses = []
    for rank, member in enumerate(members, start=1):
        pair = (member.text, member.score) if isinstance(member, Hypothesis) else member
        pair = tuple(pair) if isinstance(pair, Iterable) and not isinstance(pair, str) else (pair,)
        if len(pair) != 2:
            raise DataError(f"{where}, hypothesis {rank} came as {member!r:.40} ({type(member).__name__}); {cure}")
        hypotheses.append(hypothesis(*pair, location=f"{where}, hypothesis {rank}"))
    return replace(nbest(name, reference, hypotheses, location=where), context=context)


def _check_scores(scores: Sequence[float], expected: int, *, scorer: str, utterance: str) -> None:
    if len(scores) != expected:
        raise DataError(
            f"{scorer} gave {len(scores)} scores for the {expected} hypotheses of {utterance!r}; score the list again"
        )
    for score in scores:
        if math.isnan(score) or score == math.inf:
            raise DataError(
                f"{scorer} gave a score of {score} for {utterance!r}, expected a number; give another scorer"
            )


def _filled(of_list: NBest) -> list[int]:
    """The indices of hypotheses that have text."""
    return [index for index, hypothesis in enumerate(of_list.hypotheses) if hypothesis.text.strip()]


def check_references(lists: Sequence[NBest], *, metric: str) -> None:
    """Whether every list can be measured."""
    for of_list in lists:
        if of_list.reference is None or not of_list.reference.strip():
            what = "no reference" if of_list.reference is None else "an empty reference"
            raise DataError(
                f"utterance {of_list.utterance!r} has {what}, so {metric} cannot be measured nor λ tuned on it; "
                "write it in, drop the list, or take all references out and give a fixed λ (--weight)"
            )


def hypothesis_statistics(lists: Sequence[NBest], metric: AdditiveMetric) -> Floats:
    """(U, H, M) statistics of every hypothesis against its list's reference; 0 for what is not there."""
    check_references(lists, metric=metric.name)
    pairs = [(of_list.reference or "", hypothesis.text) for of_list in lists for hypothesis in of_list.hypotheses]
    statistics_NM = metric.statistics([reference for reference, _ in pairs], [text for _, text in pairs])
    sizes_U = np.array([len(of_list.hypotheses) for of_list in lists], dtype=np.int64)
    exists_UH = np.arange(max(sizes_U, default=1)) < sizes_U[:, None]
    statistics_UHM = np.zeros((*exists_UH.shape, statistics_NM.shape[1]))
    statistics_UHM[exists_UH] = statistics_NM
    return statistics_UHM
