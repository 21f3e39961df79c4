"""Completions of the same prefixes by several models, with the real endings: from JSONL files, or from the models.

A file holds `{"prefix": …, "completion": …}` a line. All models complete the same prefixes; real endings may be missing
for some. Models complete windows of a corpus that none of them was trained on: an LM by sampling, an LM with an energy
by joint sampling (Deng et al. 2020, alg. 1), both with the same truncation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from energylm.apps.study.new import StudyModel, StudyNew
from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_codec import Text
from energylm.data.source_windows import SourceWindows
from energylm.data.text_files import json_records
from energylm.data.tokenizer import tokenizer_sha256
from energylm.errors import DataError
from energylm.jobs.engine import LocalPool
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress
from energylm.randomness import derive_seed

_AT_ONCE = 16  # prefixes that travel together
_BROKEN = "�"  # half a character, where a window was cut inside one


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
    for model in config.models:
        locate(model.language_model)
        if model.energy is not None:
            locate(model.energy)
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
                truncation=self._model.truncation,
                stop_at_eos=False,
                seed=self._stream,
                first_context=block.first,
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
    kept = KeptBlocks(drafts, _job(model, cut_by, new_tokens, stream), _FORM)
    with progress(f"completions of {model.name}", total=len(cuts), unit="prefix") as bar:
        return [text for texts in kept.run(pool, blocks, progress=bar) for text in texts]


def _job(model: StudyModel, cut_by: str, new_tokens: int, stream: int) -> dict[str, object]:
    """What a block of completions depends on beside its prefixes."""
    paths = [path for path in (model.language_model, model.energy) if path is not None]
    how = model.model_dump(mode="json", include={"candidates", "truncation"})
    identities = [model_identity(path) for path in paths]
    return how | {"models": identities, "cut by": cut_by, "new": new_tokens, "stream": stream}


def _read_file(path: Path) -> dict[str, str]:
    """Completions by prefix."""
    if not path.is_file():
        raise DataError(f'{path} does not exist; give a JSONL file of {{"prefix": …, "completion": …}} lines')
    completions: dict[str, str] = {}
    for number, record in json_records(path):
        prefix, completion = (_text(record.get(field), field, f"{path} line {number}") for field in _FIELDS)
        if prefix in completions:
            raise DataError(f"{path} line {number} completes {prefix!r:.60} a second time; keep one completion each")
        completions[prefix] = completion
    if not completions:
        raise DataError(f'{path} holds no completion; expected {{"prefix": …, "completion": …}} a line')
    return completions


_FIELDS = ("prefix", "completion")


def _text(value: object, field: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {field!r} is {value!r:.40}, expected text that is not empty")
    return value
