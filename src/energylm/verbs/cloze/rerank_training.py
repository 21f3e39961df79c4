"""The work of `energylm rerank train`: an energy for each fold, one for all lists, λ by scores that no list tuned.

OUTPUT/model/            the energy that learnt from all lists: with `--likelihood` a language model, with `--electric`
                         or `--teacher` an Electric
OUTPUT/folds/1/ …        those that learnt from all lists but a fold
OUTPUT/reranker.json     what `energylm rerank OUTPUT` takes for its options: scorers, terms and their λ; and the λ of
                         the energy alone, for `rerank OUTPUT/model --trained-weights`
OUTPUT/unseen.json       what each fold's energy says of the lists that were held out from it: `rerank` takes that for
                         dev lists which the energy of OUTPUT/model learnt from
OUTPUT/blocks/           the scores of the other scorers and of the teacher, kept

Lists that are `also` learnt from are so in every fold, and judged in none.

The numbers that are told are cross-fitted twice: a list's energy comes from a network that never saw it, and its λ from
the other folds. What is saved has λ from all folds together, under energies that are out of fold as well: the energy of
OUTPUT/model knows its own lists by heart, and λ tuned on those would trust it too much. With dev lists there is one
energy, the folds are those of the dev lists, and training lists with a reference of theirs are left out.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from energylm.bundles.causal_networks import with_adapters, without_adapters
from energylm.bundles.cloze_model import ELECTRIC, ClozeModel, word_classes
from energylm.bundles.encoder_start import EncoderStart
from energylm.bundles.energy_model import KIND as ENERGY
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import load_head, model_identity, read_manifest
from energylm.bundles.reranker import (
    ListBlockScores,
    check_references,
    found_weights,
    gathered_scores,
    hypothesis_statistics,
    list_blocks,
    score_block,
)
from energylm.bundles.scorer import CausalScorer, ClozeScorer, Scorer
from energylm.bundles.scorer_text import recased
from energylm.config.cloze import NamedScorer, RerankSet, WeightGrid
from energylm.config.models import LEFT_TO_RIGHT, SUM, TEXT
from energylm.config.training import TrainingConfig
from energylm.data.nbest import NBest, read_lists, recognisers_best, sample_lists, with_context
from energylm.data.text_files import existing
from energylm.data.tokenizer import load_tokenizer
from energylm.energies.electric import TokenEnergy
from energylm.errors import ModelError
from energylm.estimators.additive_metrics import (
    AdditiveMetric,
    Floats,
    closed_share,
    metric_called,
    paired_bootstrap,
    text_costs,
)
from energylm.estimators.weight_tuning import ListScores, Tuning
from energylm.files import sha256_of_json, write_json
from energylm.jobs.engine import open_engine
from energylm.jobs.job import Job
from energylm.models.prefix_tree import why_not_prefix_tree
from energylm.objectives.list_losses import LIST_LOSSES
from energylm.progress import progress, say
from energylm.randomness import derive_seed
from energylm.training.engine import state_of_run, train
from energylm.training.list_task import (
    CostedList,
    ListReader,
    ListTask,
    PrefixTrees,
    TaughtListTask,
    TaughtWords,
    TokenEnergies,
    WholeTexts,
    costed_lists,
    list_folds,
    lists_apart,
)
from energylm.training.state import TrainingResult
from energylm.verbs.cloze.rerank import MODEL_FOLDER, RERANKER_FILE, TrainReranker
from energylm.verbs.cloze.rerank_report import RerankerRun, best_members
from energylm.verbs.cloze.reranking import UnseenScores, WordScorer, score_files
from energylm.verbs.cloze.score import check_scorer

RESAMPLES = 2000
TAUGHT_OF_A_LIST = 4  # hypotheses: the rest have mostly the same words
Indices = NDArray[np.int64]
FindWeights = Callable[[ListScores, Floats], Tuning]  # λ, by statistics (U, H, M)


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
        costed = costed_lists(lists, text_costs(statistics_UHM, metric), with_reference=with_reference)
        return cls(lists, statistics_UHM, costed, list_folds([each.reference or "" for each in lists], folds))

    def without(self, fold: int) -> list[CostedList]:
        """What may be learnt from where `fold` is to be judged."""
        return [self.costed[index] for other, part in enumerate(self.folds) if other != fold for index in part]


def train_reranker(verb: TrainReranker, job: Job) -> RerankerRun:
    """Train into the folder of the job, or continue the run that it holds."""
    output, metric = job.folder, metric_called(verb.metric)
    train, dev, also = read_training_lists(verb)
    own_reference = {"with_reference": verb.with_reference}
    known = TrainingLists.of(dev or train, metric, folds=verb.folds, **own_reference)
    lists, own = known.lists, NamedScorer(model=MODEL_FOLDER, casing=verb.casing)
    if verb.likelihood:
        own = own.model_copy(update={"context": verb.context})
    if verb.teacher:
        taught = taught_lists(verb, [*train, *also], job)
        learnt, more = taught[: len(train)], taught[len(train) :]
        known = known if dev else replace(known, costed=learnt)
    else:
        learnt, more = [] if dev else known.costed, []
        if only_learnt := train if dev else also:
            costs = text_costs(hypothesis_statistics(only_learnt, metric), metric)
            more = costed_lists(only_learnt, costs, **own_reference)
    judged: list[list[float]] = [[]] * len(lists)
    seconds = 0.0
    for fold, held_out in enumerate(() if dev else known.folds):
        folder = output / "folds" / str(fold + 1)
        say(f"energylm: fold {fold + 1} of {len(known.folds)}: {len(held_out):,} lists held out")
        _train(verb, [*more, *known.without(fold)], folder)
        of_fold = _judge(folder, [lists[each] for each in held_out], own)
        seconds += of_fold.seconds
        for index, of_list in zip(held_out, of_fold.scores, strict=True):
            judged[index] = of_list
    result = _train(verb, [*more, *learnt], output)  # judged lists at the end, which says when to stop
    if dev:
        judged = _judge(output, lists, own).scores
    else:
        UnseenScores.named(own, lists, judged, seconds).save(output)
    others = verb.all_scorers
    with open_engine(job.engine) as engine:
        file = RerankSet(lists=verb.lists[0])
        outcomes = [score_files(scorer, {file: lists}, output, engine) for scorer in others]
    scored = [judged, *(each.scores[file] for each in outcomes)]
    names = [own.model, *(each.name for each in outcomes)]
    scores = gathered_scores(lists, scored, names=names, terms=verb.term)
    find = partial(found_weights, metric=metric, grid=WeightGrid(), search=verb.search)
    weights = find(scores, known.statistics_UHM).weights
    [alone] = find(energy_alone(scores), known.statistics_UHM).weights
    _save(output, verb, [own, *others], weights, alone)
    facts = _told(known, scores, metric, find) | {"weights": tuple(weights), "weight_alone": alone}
    return RerankerRun.of(result, output, unseen=bool(dev), weighed=(*names, *verb.term), **facts)


def describe_training(verb: TrainReranker, output: Path) -> str:
    """Read every list and find every model without loading one; what would be done, in words."""
    lists, dev, also = read_training_lists(verb)
    learnt = [*also, *lists] if dev else also
    check_references([*(() if verb.teacher else learnt), *(dev or lists)], metric=verb.metric.upper())
    teachers = [NamedScorer(model=verb.teacher, casing=verb.casing)] if verb.teacher else []
    for each in (*verb.all_scorers, *teachers):
        check_scorer(each.model, each)
    if verb.lexicon:
        existing(verb.lexicon)
    locate(verb.init)
    how = f"λ on {len(dev):,} dev lists" if dev else f"{verb.folds} folds and all"
    return (
        f"{output}: {state_of_run(output)}: an energy from {verb.init} by {verb.teacher or verb.objective} on "
        f"{len(lists) + len(also):,} lists, "
        f"{how}, {verb.training.steps:,} steps of {verb.training.global_batch} lists each"
    )


def read_training_lists(verb: TrainReranker) -> tuple[list[NBest], list[NBest], list[NBest]]:
    """The lists, the dev lists, and those that are also learnt from; no reference of lists that are judged is among
    those that are only learnt from."""

    def read(names: Sequence[str], references: Sequence[str], limit: int | None) -> list[NBest]:
        lists, words = [], max(verb.context, *(each.context for each in verb.all_scorers), 0)
        for name, of_file in zip(names, references or (None,) * len(names), strict=True):
            of_name = with_context(read_lists(name, form=verb.format, references=of_file), words)
            lists += sample_lists(of_name, limit, seed=verb.training.seed)
        return lists

    train = read(verb.lists, verb.references, verb.limit)
    dev = read(verb.dev, verb.dev_references, verb.dev_limit or verb.limit)
    also = read(verb.also, (), verb.limit)
    if dev:
        return lists_apart(train, dev, "dev"), dev, []
    return train, [], lists_apart(also, train, "judged")


def _train(verb: TrainReranker, lists: Sequence[CostedList], folder: Path) -> TrainingResult:
    if verb.teacher or verb.electric:
        network, reader, save = _electric(verb, lists, folder)
    else:
        network, reader, save = _likelihood(verb, folder) if verb.likelihood else _energy(verb, folder)
    lists = [replace(each, base=tuple(verb.base_scale * score for score in each.base)) for each in lists]
    held = round(verb.validation_share * len(lists))
    settings = verb.training.model_dump()
    if verb.teacher:
        settings["validation"]["metric"] = "loss"  # what is chosen with λ = 1 says little of another model's scores
    if not held:
        settings["validation"]["every_steps"] = None
    training = TrainingConfig.checked(settings, origin="the training settings")
    own = {"likelihood": verb.likelihood, "lora_rank": verb.lora_rank, "context": verb.context}
    task = (TaughtListTask if verb.teacher else ListTask)(
        network,
        lists[: len(lists) - held],
        lists[len(lists) - held :],
        objective=LIST_LOSSES[verb.objective],
        reader=reader,
        seed=training.seed,
        global_batch=training.global_batch,
        save_model=save,
        hypotheses=verb.hypotheses,
        fingerprint={
            "init": model_identity(verb.init),
            "objective": verb.objective,
            "pooling": verb.pooling,
            "casing": verb.casing,
            "texts": sha256_of_json([[each.texts, each.base, each.costs] for each in lists]),
            **(own if verb.likelihood else {}),
            **({"electric": True} if verb.electric else {}),
            **({"hypotheses": verb.hypotheses} if verb.hypotheses else {}),
            **({"lexicon": model_identity(f"lexicon:{verb.lexicon}")} if verb.lexicon else {}),
            **({"taught": sha256_of_json([each.taught for each in lists])} if verb.teacher else {}),
        },
    )
    return train(task, training, folder=folder)


Start = tuple[nn.Module, ListReader, Callable[[nn.Module, Path], None]]  # what learns, how it reads, what saves it


def _energy(verb: TrainReranker, folder: Path) -> Start:
    energy = start_energy(verb)

    def save(network: Any, target: Path) -> None:
        energy.network = network
        energy.name = folder.name
        energy.save_pretrained(target)

    encode = WholeTexts(lambda texts: energy.encode_texts([recased(text, verb.casing) for text in texts]))
    return energy.network, encode, save


def _likelihood(verb: TrainReranker, folder: Path) -> Start:
    """A causal model whose log-likelihood is the energy."""
    lm = LanguageModel.from_pretrained(verb.init, device="cpu", dtype=torch.float32)
    scorer = CausalScorer(lm)
    start, why_not = lm.model.start_token_id, why_not_prefix_tree(lm.model)
    if why_not is not None or start is None or lm.model.direction != LEFT_TO_RIGHT:
        reason = why_not or f"it reads {lm.model.direction}"
        raise ModelError(f"{verb.init} cannot learn by its log-likelihood ({reason}); leave --likelihood out")

    def encode(context: str, text: str) -> tuple[Sequence[int], int]:
        heard = context.split()[-verb.context :] if verb.context else []
        reading = scorer.read(recased(" ".join([*heard, text]), verb.casing))
        return reading.ids, bisect_left(reading.words, len(heard))

    def save(network: nn.Module, target: Path) -> None:
        lm.model.network = without_adapters(network)
        lm.name = folder.name
        lm.provenance |= {"list_objective": verb.objective, **_trained_on(verb, lm.provenance)}
        lm.save_pretrained(target)

    assert verb.likelihood is not None
    network = with_adapters(lm.model.network, verb.lora_rank, seed=verb.training.seed)
    return network, PrefixTrees(encode, start_token_id=start, weight=verb.likelihood), save


def taught_lists(verb: TrainReranker, lists: Sequence[NBest], job: Job) -> list[CostedList]:
    """Some hypotheses of each list, the recogniser's best among them, with what the teacher says of their words."""
    some = []
    for row, of_list in enumerate(lists):
        filled = [index for index, each in enumerate(of_list.hypotheses) if each.text.strip()]
        best = recognisers_best(of_list)
        rivals = [index for index in filled if index != best]
        Random(derive_seed(verb.training.seed, "taught", row)).shuffle(rivals)
        chosen = [index for index in (best, *rivals[: TAUGHT_OF_A_LIST - 1]) if index in filled]
        some.append(replace(of_list, hypotheses=tuple(of_list.hypotheses[index] for index in chosen)))
    settings = {"casing": verb.casing, "context": verb.context, "dtype": verb.teacher_dtype}
    file, teacher = RerankSet(lists=verb.lists[0]), NamedScorer(model=verb.teacher, **settings)
    with open_engine(job.engine) as engine:
        outcome = score_files(teacher, {file: some}, job.folder, engine, worker=WordScorer)
    return [
        CostedList(
            texts=tuple(each.text for each in of_list.hypotheses),
            base=tuple(each.score for each in of_list.hypotheses),
            costs=(0.0,) * len(of_list.hypotheses),  # unknown, and not asked for
            taught=tuple(tuple(of_text) for of_text in of_texts),
        )
        for of_list, of_texts in zip(some, outcome.words, strict=True)
    ]


def _electric(verb: TrainReranker, lists: Sequence[CostedList], folder: Path) -> Start:
    """Token energies, which learn the teacher's words or errors; embeddings, of which lists show few, stay as they are
    where it is errors. A new head starts at the teacher's mean, or at 0."""
    is_electric = _kind(verb.init) == ELECTRIC
    if is_electric:
        model = ClozeModel.from_pretrained(verb.init, device="cpu")
        model.noise = None
    else:
        network = TokenEnergy(EncoderStart(verb.init, dropout=0.0).encoder(), seed=verb.training.seed)
        model = ClozeModel(ELECTRIC, network, load_tokenizer(locate(verb.init)), name=folder.name)
    scorer = ClozeScorer(model)

    def encode(text: str) -> tuple[Sequence[int], Sequence[int]]:
        reading = scorer.read(recased(text, verb.casing))
        return reading.ids, reading.words

    learnt = {"teacher": Path(verb.teacher).name} if verb.teacher else {"loss": f"list {verb.objective}"}

    def save(network: nn.Module, target: Path) -> None:
        model.main, model.name = cast(TokenEnergy, network), folder.name
        model.provenance |= {**learnt, **_trained_on(verb, model.provenance)}
        model.save_pretrained(target)

    tokens = [len(encode(text)[0]) for each in lists for text in each.texts]
    if max(tokens) > model.max_tokens:
        raise ModelError(
            f"a hypothesis has {max(tokens):,} tokens but {verb.init} reads {model.max_tokens:,}; leave its list out"
        )
    main = cast(TokenEnergy, model.main)
    if verb.lexicon and main.words is not None:
        raise ModelError(f"{verb.init} reads how common words are already; leave --lexicon out")
    if verb.lexicon:
        main.words = word_classes(model.tokenizer, verb.lexicon, embedding=main.encoder.get_input_embeddings())
    if not is_electric:
        total = sum(score for each in lists for scores in each.taught for score in scores)
        main.head.bias.data.fill_(-total / sum(tokens))
    if verb.teacher:
        return main, TaughtWords(encode, model.framed), save
    main.encoder.get_input_embeddings().requires_grad_(False)
    return main, TokenEnergies(encode, model.framed), save


def start_energy(verb: TrainReranker) -> EnergyModel:
    """An energy as it is; of an Electric the token energies, added up; of any other body a new projection."""
    kind, location = _kind(verb.init), locate(verb.init)
    if kind == ENERGY:
        energy = EnergyModel.from_pretrained(verb.init)
        energy.provenance |= _trained_on(verb, energy.provenance)
        return energy
    energy = EnergyModel.from_encoder(
        verb.init, pooling=verb.pooling, reads=TEXT, long_texts="cut-left", seed=verb.training.seed
    )
    if kind == ELECTRIC and verb.pooling == SUM and isinstance(location, Path):
        load_head(energy.network.head, location)
        energy.network.head.bias.data.zero_()  # Electric's is one for every token: the λ of a length
    energy.provenance |= {"loss": f"list {verb.objective}", **_trained_on(verb, energy.provenance)}
    return energy


def _kind(model: str) -> str | None:
    """Of a folder that energylm wrote."""
    location = locate(model)
    return read_manifest(location).get("kind") if isinstance(location, Path) and location.is_dir() else None


def _trained_on(verb: TrainReranker, provenance: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files of lists, those that it started with first."""
    names = (Path(name).name for name in (*verb.lists, *verb.also))
    return {"trained_on": list(dict.fromkeys([*provenance.get("trained_on", ()), *names]))}


def _judge(folder: Path, lists: Sequence[NBest], own: NamedScorer) -> ListBlockScores:
    """What the energy of `folder` says of the hypotheses of each list: −E, of those with text."""
    judge, blocks = Scorer.from_pretrained(folder / own.model, config=own), []
    with progress("judging lists", total=len(lists), unit="list") as bar:
        for block in list_blocks(lists, context=own.context):
            blocks.append(score_block(judge, block))
            bar.advance(len(block.texts))
    return ListBlockScores([scores for each in blocks for scores in each.scores], sum(each.seconds for each in blocks))


def _save(
    output: Path, verb: TrainReranker, scorers: Sequence[NamedScorer], weights: Sequence[float], alone: float
) -> None:
    write_json(
        output / RERANKER_FILE,
        {
            "scorers": [each.model_dump(mode="json", exclude_defaults=True) for each in scorers],
            "term": list(verb.term),
            "weight": list(weights),
            "alone": alone,
            "search": verb.search,
            "metric": verb.metric,
        },
    )


def energy_alone(scores: ListScores) -> ListScores:
    """Of the first scorer only, which is the energy."""
    return replace(scores, scores_SUH=scores.scores_SUH[:1])


def cross_fitted_choices(scores: ListScores, known: TrainingLists, find: FindWeights) -> Indices:
    """(U,) what each fold chooses with the λ of the others."""
    chosen_U = np.zeros(len(known.lists), np.int64)
    everything = np.arange(len(known.lists))
    for held_out in known.folds:
        others = np.setdiff1d(everything, held_out)
        weights = find(scores.rows(others), known.statistics_UHM[others]).weights
        chosen_U[held_out] = scores.rows(held_out).choose(weights)[0]
    return chosen_U


def _told(known: TrainingLists, scores: ListScores, metric: AdditiveMetric, find: FindWeights) -> dict[str, Any]:
    """The cross-fitted numbers of a `RerankerRun`."""
    rows_U, statistics_UHM = np.arange(len(known.lists)), known.statistics_UHM
    rankings = {"all": scores, "alone": energy_alone(scores)}
    chosen = {name: cross_fitted_choices(each, known, find) for name, each in rankings.items()}
    first_UM = statistics_UHM[rows_U, [recognisers_best(of_list) for of_list in known.lists]]
    second_UM = statistics_UHM[rows_U, chosen["all"]]
    oracle_UM = statistics_UHM[rows_U, best_members(known.lists, statistics_UHM, metric)]
    comparison = paired_bootstrap(first_UM, second_UM, metric, resamples=RESAMPLES, seed=0)
    return {
        "metric": metric.name,
        "lists": len(known.lists),
        "folds": len(known.folds),
        "one_best": comparison.first,
        "energy_alone": float(metric.value(statistics_UHM[rows_U, chosen["alone"]].sum(0))),
        "reranked": comparison.second,
        "oracle": float(metric.value(oracle_UM.sum(0))),
        "closed": closed_share(first_UM, second_UM, oracle_UM, metric, resamples=RESAMPLES, seed=0),
        "p_value": comparison.p_value,
    }
