"""Train in a line of Python: `EnergyModel.fit`, `LanguageModel.fit`, `Detector.fit`, `Reranker.fit` and `.learn`.

    energy = EnergyModel.fit(lm, texts, encoder="minilm-l6", steps=200, output="runs/energy")
    energy.report                                                     # held-out accuracy, calibration, gain in nats

A fit runs verbs one after the other in one folder. It declares no option: each verb takes its own by their own names,
and one that several have (`seed`) goes to each.

    LanguageModel   corpus build → lm train
    EnergyModel     corpus build → negatives → energy train
    Detector        detect train
    Reranker.learn  rerank train
    Reranker.fit    no verb and no folder: lists are scored once, λ is tuned on all of them

OUTPUT/             the training run, with its model, journal, checkpoints and report
OUTPUT/data/        what it was made from: texts, corpus/, negatives/, and language_model/ if that lay nowhere

The same fit again continues where it was killed, or does nothing. Without an output the folder is a temporary one and
lives as long as the object that comes back.

Relations  `registry.FITS` names these functions for `bundles`, which lies below; `table` knows the verbs.
"""

import difflib
import json
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open

from energylm.bundles.detector import Detector
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.reranker import Reranker, found_weights, hypothesis_statistics, tune_scored
from energylm.bundles.scorer import Scorer
from energylm.config.cloze import (
    LengthNormalisation,
    LengthTerm,
    MetricName,
    NamedScorer,
    WeightGrid,
    WeightSearch,
)
from energylm.config.models import TEXT
from energylm.data.manifest import MANIFEST_FILE
from energylm.data.nbest import NBest, read_lists, recognisers_best, with_context
from energylm.data.text_files import nearest_field
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.errors import ConfigError, DataError, ModelError
from energylm.estimators.additive_metrics import AdditiveMetric, Floats, metric_called
from energylm.estimators.weight_tuning import FEWEST_LISTS, ListScores
from energylm.files import atomic_file, sha256_of_file
from energylm.jobs.job import Job
from energylm.records import Record
from energylm.training.state import TrainedRun
from energylm.verbs.table import verb_class
from energylm.verbs.verb import Verb

BUILD, TRAIN_LM, NEGATIVES, TRAIN_ENERGY = "corpus build", "lm train", "negatives", "energy train"
TRAIN_DETECTOR, TRAIN_RERANKER = "detect train", "rerank train"
DATASET_ROWS = 256  # read at a time
Bundle = TypeVar("Bundle", LanguageModel, EnergyModel, Detector, Reranker)


def fit_language_model(texts: Any, *, output: str | Path | None, **options: Any) -> LanguageModel:
    own = _own_options((BUILD, TRAIN_LM), options, taken={"sources", "corpus"})
    if own[TRAIN_LM].get("pretrained") is not None:  # which reads a corpus of its own tokens only
        own[BUILD].setdefault("tokenizer", own[TRAIN_LM]["pretrained"])
    with _workspace(output, name="language-model") as folder:
        build, corpus = _corpus(texts, folder, own[BUILD])
        train = _verb(TRAIN_LM, own[TRAIN_LM] | {"corpus": corpus})
        run = _run([*build, (train, folder)])
        return _fitted(LanguageModel.from_pretrained(run.model), run, folder, is_temporary=output is None)


def fit_energy(
    lm: LanguageModel | str | Path, texts: Any, *, encoder: str | Path, output: str | Path | None, **options: Any
) -> EnergyModel:
    taken = {"sources", "tokenizer", "corpus", "language_model", "negatives", "init"}
    own = _own_options((BUILD, NEGATIVES, TRAIN_ENERGY), options, taken=taken)
    with _workspace(output, name="energy") as folder:
        lm_path = _saved(lm, folder / "data" / "language_model")
        build, corpus = _corpus(texts, folder, own[BUILD] | {"tokenizer": lm_path})
        negatives = folder / "data" / "negatives"
        made = {"negatives": str(negatives), "corpus": corpus, "init": str(encoder)}
        write = _verb(NEGATIVES, own[NEGATIVES] | {"language_model": lm_path, "corpus": corpus})
        train = _verb(TRAIN_ENERGY, _reading(encoder, lm_path) | own[TRAIN_ENERGY] | made)
        run = _run([*build, (write, negatives), (train, folder)])
        return _fitted(EnergyModel.from_pretrained(run.model), run, folder, is_temporary=output is None)


def fit_detector(
    human: Any, machine: Any, *, encoder: str | Path | None, output: str | Path | None, **options: Any
) -> Detector:
    own = _own_options((TRAIN_DETECTOR,), options, taken={"human", "machine", "data", "init"})[TRAIN_DETECTOR]
    with _workspace(output, name="detector") as folder:
        field = own.get("field", _default(BUILD, "field"))
        for label, texts in (("human", human), ("machine", machine)):
            own[label] = _source(texts, folder / "data" / f"{label}.jsonl", field=field)
        start = {} if encoder is None else {"init": str(encoder)}
        run = _run([(_verb(TRAIN_DETECTOR, own | start), folder)])
        return _fitted(Detector.from_pretrained(run.model), run, folder, is_temporary=output is None)


def learn_reranker(lists: Any, *, init: str | Path, output: str | Path | None, **options: Any) -> Reranker:
    own = _own_options((TRAIN_RERANKER,), options, taken={"lists", "init"})[TRAIN_RERANKER]
    with _workspace(output, name="reranker") as folder:
        files: list[Any] = [lists] if isinstance(lists, str | Path) else list(lists)
        if files and all(isinstance(each, NBest) for each in files):
            files = [_written(map(asdict, files), folder / "data" / "lists.jsonl")]
        verb: Any = _verb(TRAIN_RERANKER, own | {"lists": [str(file) for file in files], "init": str(init)})
        context = _same_context(verb)
        run: Any = _run([(verb, folder)])
        named = [NamedScorer(model=str(run.model), casing=verb.casing), *verb.all_scorers]
        scorers = [Scorer.from_pretrained(each.model, config=each) for each in named]
        reranker = Reranker(scorers, weight=run.weights, terms=verb.term, context=context)
        told = {"metric": run.metric, "lists": run.lists, "folds": run.folds, "first_best": run.one_best.value}
        reranker.provenance = {"validation": told | {"held_out": run.reranked.value}}
        return _fitted(reranker, run, folder, is_temporary=output is None)


def _same_context(verb: Any) -> int:
    """How much all scorers read of what was heard before: in Python one number for all."""
    contexts = {verb.context if verb.likelihood else 0, *(each.context for each in verb.all_scorers)}
    if len(contexts) > 1:
        read = " and ".join(map(str, sorted(contexts)))
        raise ConfigError(
            f"the scorers read {read} words of what was heard before, and a Reranker reads one number of them for all; "
            "give each the same `context`, or use `energylm rerank train` and `energylm rerank OUTPUT`"
        )
    return int(contexts.pop())


@dataclass(frozen=True)
class RerankerFit(Record):
    """λ tuned on all lists, and what the metric (WER or BLEU) says of the choices."""

    weights: tuple[float, ...]
    metric: str
    lists: int
    first_best: float  # the recogniser's own choice
    tuned: float  # on the very lists that λ was tuned on: too good
    held_out: float | None  # each half of the lists with λ tuned on the other; None where a half is too small to tune
    convention: str


def get_known_model(name: str) -> None:
    """Fetch a known model that is not here yet, whose name was used."""
    verb_class("models get").checked({"name": name}).run()


def fit_reranker(
    lists: str | Path | Sequence[NBest],
    scorer: Any,
    *,
    metric: MetricName,
    grid: WeightGrid | None,
    length_normalisation: LengthNormalisation,
    terms: Sequence[LengthTerm],
    search: WeightSearch,
    context: int,
) -> Reranker:
    several = scorer if isinstance(scorer, Sequence) and not isinstance(scorer, str) else [scorer]
    scorers = [Scorer.from_pretrained(each) if isinstance(each, str | Path) else each for each in several]
    reranker = Reranker(scorers, length_normalisation=length_normalisation, terms=terms, context=context)
    lists = with_context(read_lists(lists), context) if isinstance(lists, str | Path) else list(lists)
    measure, grid = metric_called(metric), grid or WeightGrid()
    statistics_UHM = hypothesis_statistics(lists, measure)
    scores = reranker.score_lists(lists)
    tuning = tune_scored(scores, statistics_UHM, measure, grid=grid, search=search)
    reranker.weights = tuning.weights
    best_U = [recognisers_best(of_list) for of_list in lists]
    first_best = float(measure.value(statistics_UHM[np.arange(len(lists)), best_U].sum(0)[None])[0])
    held_out = _cross_fitted(scores, statistics_UHM, measure, grid, search)
    reranker.report = RerankerFit(
        tuning.weights, measure.name, len(lists), first_best, tuning.value, held_out, measure.convention
    )
    reranker.provenance = {"validation": reranker.report.to_json()}
    return reranker


def _cross_fitted(
    scores: ListScores, statistics_UHM: Floats, metric: AdditiveMetric, grid: WeightGrid, search: WeightSearch
) -> float | None:
    """The metric over all lists, each half with the λ of the other."""
    halves = np.arange(0, len(statistics_UHM), 2), np.arange(1, len(statistics_UHM), 2)
    if len(halves[1]) < FEWEST_LISTS:
        return None
    totals = []
    for tuned_on, measured_on in (halves, halves[::-1]):
        tuning = found_weights(scores.rows(tuned_on), statistics_UHM[tuned_on], metric, grid=grid, search=search)
        chosen, _ = scores.rows(measured_on).choose(tuning.weights)
        totals.append(statistics_UHM[measured_on, chosen].sum(0))
    return float(metric.value(sum(totals)[None])[0])


def _own_options(names: Sequence[str], options: Mapping[str, Any], *, taken: Collection[str]) -> dict[str, Any]:
    """Of each verb the options that are its own. `taken` are those that the fit itself gives."""
    known = {name: {*verb_class(name).model_fields, *verb_class(name).shortcuts} - set(taken) for name in names}
    everything = sorted(set().union(*known.values()))
    for option in options:
        if option not in everything:
            near = difflib.get_close_matches(option, everything, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]!r}? " if near else ""
            verbs = ", ".join(f"`energylm {name}`" for name in names)
            raise ConfigError(f"fit has no option {option!r}; {meant}it takes those of {verbs}")
    return {name: {key: value for key, value in options.items() if key in known[name]} for name in names}


def _default(verb: str, option: str) -> Any:
    return verb_class(verb).model_fields[option].default


def _verb(name: str, values: Mapping[str, Any]) -> Verb:
    return verb_class(name).checked(values, origin=f"energylm {name}")


def _run(steps: Sequence[tuple[Verb, Path]]) -> TrainedRun:
    """What the last verb hands back; each runs in its folder."""
    result: Record | None = None
    for verb, folder in steps:
        result = verb.run(Job(output=folder))
    assert isinstance(result, TrainedRun)
    return result


@contextmanager
def _workspace(output: str | Path | None, *, name: str) -> Iterator[Path]:
    """The folder of a fit; a temporary one is removed if the fit fails."""
    if output is not None:
        yield Path(output).expanduser()
        return
    folder = Path(tempfile.mkdtemp(prefix="energylm-")) / name
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


def _fitted(bundle: Bundle, run: TrainedRun, folder: Path, *, is_temporary: bool) -> Bundle:
    bundle.report = run
    if is_temporary:
        weakref.finalize(bundle, shutil.rmtree, folder.parent, ignore_errors=True)
    return bundle


def _corpus(texts: Any, folder: Path, options: Mapping[str, Any]) -> tuple[list[tuple[Verb, Path]], str]:
    """The verb that builds the corpus of these texts, with its folder; none where they are a corpus already."""
    path = Path(texts).expanduser() if isinstance(texts, str | Path) else None
    if path is not None and (path / MANIFEST_FILE).is_file():
        if wrong := sorted(set(options) - {"tokenizer"}):
            raise ConfigError(f"{path} is a corpus already, so {', '.join(wrong)} cannot be set; leave it out")
        return [], str(path)
    if path is None and "format" in options:
        raise ConfigError(f"format {options['format']} came for texts that are no file; leave it out")
    field = options.get("field", _default(BUILD, "field"))
    source = _source(texts, folder / "data" / "texts.jsonl", field=field)
    build, corpus = _verb(BUILD, {**options, "sources": source}), folder / "data" / "corpus"
    return [(build, corpus)], str(corpus)


def _source(texts: Any, file: Path, *, field: str) -> str:
    """What a verb reads the texts from: the path that they are, or `file`, to which they are written."""
    if isinstance(texts, str | Path):
        return str(texts)
    return _written(({field: text} for text in _strings(texts, field=field)), file)


def _written(records: Iterable[Mapping[str, Any]], file: Path) -> str:
    """The path of `file` with these records, a line each; one with others is left as it is."""
    with atomic_file(file) as temporary:
        with open(temporary, "w", encoding="utf-8") as lines:
            for record in records:
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        if not temporary.stat().st_size:
            raise DataError("no texts came; give strings, a datasets.Dataset, a corpus folder or a file")
        if file.exists() and sha256_of_file(file) != sha256_of_file(temporary):
            raise DataError(f"{file.parents[1]} holds a fit of other texts; choose another output")
    return str(file)


def _strings(texts: Any, *, field: str) -> Iterator[str]:
    """Strings as they are; of a data set, the column `field`."""
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        cure = (
            f"give one of its splits, e.g. texts[{next(iter(texts))!r}]" if isinstance(texts, Mapping) and texts else ""
        )
        raise DataError(
            f"texts came as a {kind}; {cure or 'give strings, a datasets.Dataset, a corpus folder or a file'}"
        )
    if hasattr(texts, "select_columns"):
        columns = getattr(texts, "column_names", None)  # None of a stream
        if columns is not None and field not in columns:
            raise DataError(f"the data set has no column {field!r}; {nearest_field(field, columns)}")
        batches = texts.select_columns([field]).iter(batch_size=DATASET_ROWS)
        texts = (text for batch in batches for text in batch[field])
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"text {number} came as {text!r:.40} ({type(text).__name__}), expected a string; drop it")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"text {number} holds half a character (a lone surrogate); mend or drop it") from None
        yield text


def _saved(lm: LanguageModel | str | Path, folder: Path) -> str:
    """Where a language model lies. One that was made or changed in memory is saved in `folder`, once; a name of the hub
    is taken at its word."""
    if isinstance(lm, str | Path):
        return str(lm)
    if not isinstance(lm, LanguageModel):
        raise ModelError(
            f"the language model came as a {type(lm).__name__}; give LanguageModel.from_pretrained(…), "
            "LanguageModel(model, tokenizer), or the folder or name of one"
        )
    if isinstance(lm.location, str) or (lm.location is not None and _holds(lm.location, lm)):
        return str(lm.location)
    if not folder.exists():
        lm.save_pretrained(folder)
    elif not _holds(folder, lm):
        raise ModelError(f"{folder.parents[1]} holds a fit of another language model; choose another output")
    lm.location = folder.absolute()  # a joint model asks whether these weights wrote the negatives
    vars(lm).pop("weights_hashes", None)
    return str(folder)


def _holds(folder: Path, lm: LanguageModel) -> bool:
    """Whether the weights in a folder are those in memory, as far as they have the same names."""
    state = lm.model.network.state_dict()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            for name in state.keys() & set(weights.keys()):
                if not torch.equal(weights.get_tensor(name).to(state[name]), state[name]):
                    return False
    return True


def _reading(encoder: str | Path, lm: str) -> dict[str, Any]:
    """An encoder of another tokenizer than the language model's reads text."""
    try:
        encoder_location = locate(encoder)
    except ModelError:  # the name of a shape, or a mistake that the verb will name
        return {}
    shas = [tokenizer_sha256(load_tokenizer(location)) for location in (encoder_location, locate(lm))]
    return {} if shas[0] == shas[1] else {"reads": TEXT}
