"""Make a study: pairs of completions, a qualification and attention checks, all in seeded random order.

Prefixes are shuffled once. The first that have a real ending make the qualification and the checks, the others the
pairs, so that nobody sees the real ending of a prefix that comes back. Of each comparison the first prefixes are taken
on which the two models differ: two equal texts would measure the coin. Sides are drawn later, for each rater.

Completions are read from JSONL files, `{"prefix": …, "completion": …}` a line, or come from models. All complete the
same prefixes; real endings may be missing for some. Models complete windows of a corpus that none of them was trained
on: an LM by sampling, an LM with an energy by joint sampling (Deng et al. 2020, alg. 1), both with the same truncation.

Relations  `new` declares the verb; `design` writes the folder.
"""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from energylm.apps.study.design import Kind, Known, Pair, Study, item_id, read_study, refuse_existing, write_study
from energylm.apps.study.new import StudyModel, StudyNew
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_codec import Text
from energylm.data.text_files import json_records
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.windows import SourceWindows
from energylm.errors import DataError
from energylm.estimators.pairwise_preference import pass_probability
from energylm.files import folder_lock
from energylm.jobs.engine import LocalPool
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress
from energylm.randomness import derive_seed, shuffled
from energylm.records import Record

ORIGIN = {"completions", "real", "models", "candidates", "source", "split", "length", "prefix_tokens", "pairs"}
_AT_ONCE = 16  # prefixes that travel together
_BROKEN = "�"  # half a character, where a window was cut inside one
SPARE = 1.2  # prefixes drawn for each that is needed: some windows are cut inside a character, some models agree


@dataclass(frozen=True)
class Completed:
    prefix: str
    by_model: Mapping[str, str]
    real: str | None


@dataclass(frozen=True)
class Cut:
    """A window of a corpus, cut in two."""

    ids: Sequence[int]  # of the prefix
    prefix: str
    real: str

    @property
    def is_whole(self) -> bool:
        """Whether there is something to read on both sides, and no half of a character."""
        return bool(self.prefix.strip() and self.real.strip()) and _BROKEN not in self.prefix + self.real


@dataclass(frozen=True)
class CutBlock:
    first: int  # index of the first window
    cuts: Sequence[Cut]


_FORM = BlockForm(block=asdict, to_json=list, from_json=list, size=lambda block: len(block.cuts))


@dataclass(frozen=True)
class NewStudy(Record):
    folder: Path
    digest: str
    models: tuple[str, ...]
    comparisons: tuple[tuple[str, str], ...]
    pairs: int
    identical: int  # pairs left out because both models wrote the same
    votes_wanted: int
    qualification: int  # items of it
    qualification_needed: int
    coin_tosser_passes: float  # a chance
    checks: int

    @property
    def study(self) -> Study:
        return read_study(self.folder)

    def summary(self) -> str:
        """Counts and odds, in one line."""
        left_out = f"; {self.identical} left out whose two texts are the same" if self.identical else ""
        odds = (
            f"qualification {self.qualification_needed} of {self.qualification}, which a coin-tosser passes in "
            f"{self.coin_tosser_passes:.1%} of cases"
        )
        return (
            f"{self.pairs:,} pairs in {_comparisons(len(self.comparisons))} of {', '.join(self.models)}, "
            f"{self.votes_wanted:,} votes wanted{left_out}; {self.checks} checks; "
            f"{odds if self.qualification else 'no qualification'}"
        )


def new_study(config: StudyNew, *, output: Path | str, salt: str | None = None) -> NewStudy:
    """Make the study's folder. `salt` hides what items are: leave it to chance wherever people will answer."""
    design, salt, output = config.design, salt or secrets.token_hex(), Path(output)
    refuse_existing(output)  # before models draw for hours
    drafts = output.with_name(f".{output.name}.drawing")
    if config.models:
        check_models(config)
        with folder_lock(drafts):
            completed = draw_completions(config, prefixes=prefixes_needed(config), drafts=drafts)
    else:
        completed = read_completions(config)
    known, rest = _known_and_rest(config, _shuffled(completed, derive_seed(design.seed, "prefixes")))
    pairs, identical = _pairs(config, rest, salt)
    checks_needed = design.checks.items or design.checks_needed(len(pairs))
    qualification = _make_known(config, "qualification", known[: design.qualification.items], salt)
    checks = _make_known(config, "check", known[design.qualification.items :][:checks_needed], salt)
    items: dict[str, Any] = {"pairs": pairs, "qualification": qualification, "checks": checks}
    origin = config.model_dump(mode="json", include=ORIGIN)
    study = write_study(output, design=design, models=config.names, comparisons=config.compared, **items, origin=origin)
    shutil.rmtree(drafts, ignore_errors=True)
    return NewStudy(
        folder=output,
        digest=study.digest,
        models=study.models,
        comparisons=study.comparisons,
        pairs=len(study.pairs),
        identical=identical,
        votes_wanted=study.votes_wanted,
        qualification=len(study.qualification),
        qualification_needed=design.qualification.needed,
        coin_tosser_passes=pass_probability(len(study.qualification), design.qualification.needed, 0.5),
        checks=len(study.checks),
    )


def describe_study(config: StudyNew) -> str:
    """What would be made, after a look at every input; models are found and not loaded."""
    design = config.design
    if config.models:
        check_models(config)
        have = f"{prefixes_needed(config):,} windows of {config.source} completed by {len(config.models)} models"
    else:
        completed = read_completions(config)
        _known_and_rest(config, completed)
        have = f"{len(completed):,} prefixes completed by {len(config.completions)} models"
    odds = pass_probability(design.qualification.items, design.qualification.needed, 0.5)
    return (
        f"would make a study of {_comparisons(len(config.compared))} from {have}; qualification "
        f"{design.qualification.needed} of {design.qualification.items}, passed by a coin-tosser in {odds:.1%} of cases"
    )


def _comparisons(count: int) -> str:
    return "1 comparison" if count == 1 else f"{count} comparisons"


def prefixes_needed(config: StudyNew) -> int:
    pairs = config.pairs
    if pairs is None:
        raise DataError("how many pairs? with models, give pairs a number: windows can be cut without end")
    return int(SPARE * (pairs + _known_needed(config, pairs * len(config.compared)))) + 1


def _known_needed(config: StudyNew, pairs: int) -> int:
    design = config.design
    return design.qualification.items + (design.checks.items or design.checks_needed(pairs))


def _known_and_rest(config: StudyNew, completed: Sequence[Completed]) -> tuple[list[Completed], list[Completed]]:
    """Prefixes for known answers, and the others."""
    comparisons, design = len(config.compared), config.design
    usable = [text for text in completed if text.real is not None and text.real not in text.by_model.values()]
    if config.pairs is None:
        # Every prefix that is not known is a pair of each comparison: take as few as leave enough checks for the rest.
        needed = 0
        while needed < len(completed) and needed < _known_needed(config, (len(completed) - needed) * comparisons):
            needed += 1
    else:
        needed = _known_needed(config, config.pairs * comparisons)
    if len(usable) < needed:
        raise DataError(
            f"{needed} prefixes with a real ending are needed ({design.qualification.items} for the qualification, the "
            f"others for checks) but {len(usable)} have one that no model wrote; give real endings of more prefixes, "
            "or lower max_pairs_per_rater, checks.items or qualification.items"
        )
    known = usable[:needed]
    taken = {text.prefix for text in known}
    rest = [text for text in completed if text.prefix not in taken]
    if not rest or len(rest) < (config.pairs or 1):
        raise DataError(
            f"{config.pairs or 1} prefixes are wanted for pairs but {len(rest)} of {len(completed)} are left beside "
            f"{needed} with known answers; give more completions, or lower --pairs"
        )
    return known, rest


def _pairs(config: StudyNew, rest: Sequence[Completed], salt: str) -> tuple[list[Pair], int]:
    """Pairs of all comparisons in one random order, and how many were left out."""
    chosen: list[tuple[Completed, str, str]] = []
    identical = 0
    for first, second in config.compared:
        of_comparison: list[tuple[Completed, str, str]] = []
        for text in rest:
            if len(of_comparison) == config.pairs:
                break
            if text.by_model[first].strip() == text.by_model[second].strip():
                identical += 1
            else:
                of_comparison.append((text, first, second))
        if not of_comparison or len(of_comparison) < (config.pairs or 1):
            raise DataError(
                f"{first!r} and {second!r} differ on {len(of_comparison)} prefixes but {config.pairs or 1} are wanted; "
                "give more completions, or lower --pairs"
            )
        chosen += of_comparison
    ordered = _shuffled(chosen, derive_seed(config.design.seed, "pairs"))
    pairs = [
        Pair(item_id(salt, "pair", number), text.prefix, text.by_model[first], text.by_model[second], first, second)
        for number, (text, first, second) in enumerate(ordered)
    ]
    return pairs, identical


def _make_known(config: StudyNew, kind: Kind, chosen: Sequence[Completed], salt: str) -> list[Known]:
    """Real endings against samples of the models in turn, or against their own words in random order."""
    made = []
    for number, text in enumerate(chosen):
        assert text.real is not None
        source = config.names[number % len(config.names)]
        wrong = text.by_model[source]
        if kind == "check" and config.design.checks.wrong == "shuffled":
            wrong, source = _shuffled_words(text.real, number, config.design.seed), "shuffled"
        made.append(Known(item_id(salt, kind, number), text.prefix, text.real, wrong, source))
    return made


def _shuffled_words(real: str, number: int, seed: int) -> str:
    """The real ending's words in another order than their own."""
    words = real.split()
    if len(set(words)) < 2:
        raise DataError(f"the real ending {real!r:.40} has no other order; take checks.wrong=sample")
    for attempt in range(1000):
        mixed = _shuffled(words, derive_seed(seed, "shuffled words", number, attempt))
        if mixed != words:
            break
    return " " + " ".join(mixed)


def _shuffled(values: Sequence[Any], seed: int) -> list[Any]:
    return [values[index] for index in shuffled(np.arange(len(values)), len(values), seed=seed).tolist()]


def read_completions(config: StudyNew) -> list[Completed]:
    """Prefixes in the order of the first file."""
    texts = {file.name: _read_file(Path(file.file)) for file in config.completions}
    real = {} if config.real is None else _read_file(Path(config.real))
    first = next(iter(texts))
    for name in texts:
        if texts[name].keys() != texts[first].keys():
            odd = next(iter(texts[name].keys() ^ texts[first].keys()))
            where = first if odd in texts[name] else name
            raise DataError(f"models must complete the same prefixes; {where!r} does not complete {odd!r:.60}")
    return [
        Completed(prefix, {name: of_model[prefix] for name, of_model in texts.items()}, real.get(prefix))
        for prefix in texts[first]
    ]


def draw_completions(config: StudyNew, *, prefixes: int, drafts: Path) -> list[Completed]:
    """Let the models complete `prefixes` windows; finished blocks are kept in `drafts`, where a killed run goes on."""
    seed, start = config.design.seed, config.prefix_tokens
    assert config.source is not None
    lm = LanguageModel.from_pretrained(config.models[0].language_model)
    windows = SourceWindows(config.source, config.length, prefixes, seed, config.split)
    tokens = windows.load(lm.tokenizer, model=config.models[0].language_model)
    halves = ((ids[:start], ids[start:]) for ids in tokens)
    cuts = (Cut(prefix, lm.decode(prefix), lm.decode(real)) for prefix, real in halves)
    whole = list({cut.prefix: cut for cut in cuts if cut.is_whole}.values())
    new_tokens, cut_by = config.length - start, tokenizer_sha256(lm.tokenizer)
    texts = {
        model.name: _complete(model, whole, cut_by=cut_by, new_tokens=new_tokens, seed=seed, drafts=drafts)
        for model in config.drawn_by
    }
    return [
        Completed(cut.prefix, {name: of_model[index] for name, of_model in texts.items()}, cut.real)
        for index, cut in enumerate(whole)
    ]


def check_models(config: StudyNew) -> None:
    """Find every model without loading it."""
    for path in (path for model in config.models for path in model.paths):
        locate(path)
    if config.source is not None and not Path(config.source).exists():
        raise DataError(f"{config.source} does not exist; give a corpus folder or a text file")


class CompletionsWorker:
    """A `jobs.engine.Worker`: one completion of each prefix, by sampling or by joint sampling.

    A model with the tokens that the windows were cut by continues these very tokens, another one their text.
    """

    def __init__(self, model: StudyModel, *, cut_by: str, new_tokens: int, stream: int) -> None:
        self._model, self._new_tokens, self._stream = model, new_tokens, stream
        self._joint = (
            None if model.energy is None else ResidualModel.load(model.language_model, model.energy, plain_text=True)
        )
        lm = LanguageModel.from_pretrained(model.language_model) if self._joint is None else self._joint.lm
        assert isinstance(lm, LanguageModel)
        self._lm = lm.without_special_tokens()  # the windows lie within documents
        self._same_tokens = tokenizer_sha256(self._lm.tokenizer) == cut_by

    def facts(self) -> dict[str, Any]:
        return {}

    def __call__(self, block: CutBlock, *, progress: Progress) -> list[str]:
        contexts: list[Text] = [cut.ids if self._same_tokens else cut.prefix for cut in block.cuts]
        if self._joint is not None:
            options = self._model.joint_sampling(self._new_tokens)
            samples = self._joint.sample_batch(contexts, options, seed=self._stream, first_context=block.first)
            texts = [sample.text for sample in samples]
        else:
            drawn = self._lm.sample(
                contexts,
                max_new_tokens=self._new_tokens,
                stop_at_eos=False,
                seed=self._stream,
                first_context=block.first,
                **self._model.truncation.model_dump(),
            )
            texts = [copies[0] for copies in drawn.texts]
        progress.advance(len(texts))
        return texts


def _complete(
    model: StudyModel, cuts: Sequence[Cut], *, cut_by: str, new_tokens: int, seed: int, drafts: Path
) -> list[str]:
    """The model's completions. Models draw from streams of their own, so that equal ones differ."""
    stream = derive_seed(seed, "completions", model.name)
    pool = LocalPool(partial(CompletionsWorker, model, cut_by=cut_by, new_tokens=new_tokens, stream=stream))
    blocks = (CutBlock(start, cuts[start : start + _AT_ONCE]) for start in range(0, len(cuts), _AT_ONCE))
    identities = [model_identity(path) for path in model.paths]
    job = model.model_dump(mode="json", include={"candidates", "truncation"})  # what a block depends on
    job |= {"models": identities, "cut by": cut_by, "new": new_tokens, "stream": stream}
    with progress(f"completions of {model.name}", total=len(cuts), unit="prefix") as bar:
        kept = KeptBlocks(drafts, job, _FORM).run(pool, blocks, progress=bar)
        return [text for texts in kept for text in texts]


def _read_file(path: Path) -> dict[str, str]:
    """Completions by prefix."""
    if not path.is_file():
        raise DataError(f'{path} does not exist; give a JSONL file of {{"prefix": …, "completion": …}} lines')
    completions: dict[str, str] = {}
    for number, record in json_records(path):
        where = f"{path} line {number}"
        for field in ("prefix", "completion"):
            value = record.get(field)
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{where}: {field!r} is {value!r:.40}, expected text that is not empty")
        if record["prefix"] in completions:
            raise DataError(f"{where} completes {record['prefix']!r:.60} a second time; keep one completion each")
        completions[record["prefix"]] = record["completion"]
    if not completions:
        raise DataError(f'{path} holds no completion; expected {{"prefix": …, "completion": …}} a line')
    return completions
