"""Windows measured in blocks: what `energylm perplexity` asks of language models and of a joint model.

The samples of a window depend on the seed and the window's index only, so blocks change nothing but the last bits of
sums that are taken over other batches; blocks of one size give the same bits on every engine.

Relations  `perplexity` declares the verb; `jobs.engine` does the blocks, `jobs.kept_blocks` keeps them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from energylm.bundles.known_models import absolute_place
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.bundles.residual_measures import MeasuredPositions, MeasuredTexts, sample_counts
from energylm.bundles.residual_model import ResidualModel
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.errors import VocabularyMismatch
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.files import folder_lock
from energylm.jobs.engine import Engine, Pool, open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.report.report import write_report
from energylm.verbs.joint.perplexity import Perplexity
from energylm.verbs.joint.perplexity_report import PerplexityResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TokenWindows = Sequence[list[int]]


@dataclass(frozen=True)
class WindowBlock:
    first: int  # the index of the first window
    windows: list[list[int]]
    by_position: bool = False


@dataclass(frozen=True)
class JointMeasures:
    """What was measured of the joint model, by number of samples and, if asked for, by position."""

    by_samples: list[JointPerplexity]
    by_position: PositionPerplexity | None
    name: str  # of the base


def measure(verb: Perplexity, job: Job) -> PerplexityResult:
    """Measure all models that the verb names; with an output folder also write the report there."""
    output = job.output
    with nullcontext() if output is None else folder_lock(output), open_engine(job.engine) as engine:
        result = _measure(verb, engine, output)
        if output is None:
            return result
        page = write_report(output, title=f"Perplexity of {result.name}", sections=result.sections())
        return replace(result, report=page)


def _measure(verb: Perplexity, engine: Engine, output: Path | None) -> PerplexityResult:
    models = {"base": verb.language_model, "ralm": verb.ralm, "balm": verb.balm}
    paths = {name: absolute_place(LanguageModel.located(path)) for name, path in models.items() if path is not None}
    base = paths.pop("base")
    tokenizer = load_tokenizer(base)
    for name, path in paths.items():
        _refuse_other_tokens(path, tokenizer, name=name.upper())
    windows = verb.windows.load(tokenizer, model=verb.language_model)
    described = verb.windows.describe(len(windows))
    baselines = {
        name: measure_lm(engine, path, windows, verb, what=name.upper(), output=output)[0]
        for name, path in paths.items()
    }
    if verb.energy is None:
        alone, name = measure_lm(engine, base, windows, verb, what="the language model", output=output)
        return PerplexityResult(described, name, alone, baselines)
    measured = measure_joint(engine, (base, absolute_place(verb.energy)), windows, verb, output=output)
    *_, joint = measured.by_samples
    if warning := joint.warning or (measured.by_position and measured.by_position.warning):
        say(f"energylm: {warning}")
    by_samples = tuple(measured.by_samples) if verb.by_samples else ()
    return PerplexityResult(described, measured.name, joint.base, baselines, joint, by_samples, measured.by_position)


def _refuse_other_tokens(path: str, base: "PreTrainedTokenizerFast", *, name: str) -> None:
    """A baseline scores the very tokens that the base scores."""
    tokenizer = load_tokenizer(path)
    if tokenizer_sha256(tokenizer) != tokenizer_sha256(base):
        raise VocabularyMismatch(
            f"{name} {path} reads {len(tokenizer):,} tokens but the base {len(base):,} others; "
            "perplexities per token compare models of one tokenizer only: train it on the base's corpus"
        )


def measure_lm(
    engine: Engine, path: str, windows: TokenWindows, verb: Perplexity, *, what: str, output: Path | None
) -> tuple[PerplexityEstimate, str]:
    """Perplexity of a language model alone, and its name."""
    job = {
        "task": "scores",
        "model": output and model_identity(path),
        "prefix": verb.prefix_tokens,
        "plain_text": verb.plain_text,
        "block": verb.block_contexts,
    }
    kept = KeptBlocks(output, job, _form(lambda rows: rows, lambda rows: rows, size=lambda block: len(block.windows)))
    load = partial(LanguageModelWorker, path, prefix=verb.prefix_tokens, plain_text=verb.plain_text)
    with (
        engine.pool(load, models=[path]) as pool,
        progress(f"measuring {what}", total=len(windows), unit="window") as bar,
    ):
        facts = pool.facts()
        rows = [row for rows in kept.run(pool, _blocks(windows, verb), progress=bar) for row in rows]
    log_probs, tokens, sizes = zip(*rows, strict=True)
    measured = perplexity(
        torch.tensor(log_probs, dtype=torch.float64),
        torch.tensor(tokens),
        torch.tensor(sizes),
        convention=facts["convention"],
    )
    return measured, facts["name"]


def measure_joint(
    engine: Engine, paths: tuple[str, str], windows: TokenWindows, verb: Perplexity, *, output: Path | None
) -> JointMeasures:
    """The joint model of the language model and the energy at `paths`."""
    load = partial(JointWorker, *paths, verb)
    with engine.pool(load, models=paths) as pool:
        facts = pool.facts()
        told = {"convention": facts["convention"], "caution": facts["caution"]}
        whole = MeasuredTexts.joined(_measured(pool, paths, windows, verb, by_position=False, output=output))
        steps = None
        if verb.by_position:
            parts = _measured(pool, paths, windows, verb, by_position=True, output=output)
            steps = MeasuredPositions.joined(parts).perplexity(first_position=verb.prefix_tokens + 1, **told)
    return JointMeasures(whole.perplexities(**told, confidence=verb.confidence), steps, facts["name"])


def _measured(
    pool: Pool,
    paths: Sequence[str],
    windows: TokenWindows,
    verb: Perplexity,
    *,
    by_position: bool,
    output: Path | None,
) -> list[Any]:
    new = verb.length - verb.prefix_tokens
    measured = MeasuredPositions if by_position else MeasuredTexts
    tokens = verb.position_samples * new * (new + 1) // 2 if by_position else verb.n * new  # drawn for a window
    job = {
        "task": "positions" if by_position else "samples",
        "models": output and list(map(model_identity, paths)),
        "counts": [verb.position_samples] if by_position else _counts(verb),
        "prefix": verb.prefix_tokens,
        "plain_text": verb.plain_text,
        "seed": verb.seed,
        "block": verb.block_contexts,
    }
    form = _form(measured.to_json, measured.from_json, size=lambda block: len(block.windows) * tokens)
    what = "measuring the joint model" + (" by position" if by_position else "")
    with progress(what, total=len(windows) * tokens, unit="token") as bar:
        blocks = _blocks(windows, verb, by_position=by_position)
        return list(KeptBlocks(output, job, form).run(pool, blocks, progress=bar))


class LanguageModelWorker:
    """[log-probability, tokens, bytes] of each window."""

    def __init__(self, path: str, *, prefix: int, plain_text: bool) -> None:
        lm = LanguageModel.from_pretrained(path)
        self._lm, self._prefix = lm.without_special_tokens() if plain_text else lm, prefix

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._lm.name, "convention": self._lm.convention(prefix_tokens=self._prefix, of_ids=True)}

    def __call__(self, block: WindowBlock, *, progress: Progress) -> list[list[float]]:
        scores = self._lm.score(block.windows, prefix_tokens=self._prefix)
        progress.advance(len(block.windows))
        return [[score.log_prob, score.tokens, score.bytes] for score in scores]


class JointWorker:
    """`MeasuredTexts` of a block, or `MeasuredPositions` where it asks for them."""

    def __init__(self, language_model: str, energy: str, verb: Perplexity) -> None:
        self._joint, self._verb = ResidualModel.load(language_model, energy, plain_text=verb.plain_text), verb

    def facts(self) -> Mapping[str, Any]:
        convention = self._joint.convention([[0]], prefix_tokens=self._verb.prefix_tokens)  # of windows that are ids
        caution, lm = self._joint.caution(self._verb.length), self._joint.lm
        assert isinstance(lm, LanguageModel)
        return {"name": lm.name, "convention": convention, "caution": caution}

    def __call__(self, block: WindowBlock, *, progress: Progress) -> MeasuredTexts | MeasuredPositions:
        verb = self._verb
        shared: dict[str, Any] = {
            "prefix_tokens": verb.prefix_tokens,
            "seed": verb.seed,
            "first_context": block.first,
            "progress": progress,
        }
        if block.by_position:
            return self._joint.measure_steps(block.windows, n=verb.position_samples, **shared)
        return self._joint.measure(block.windows, counts=_counts(verb), **shared)


def _counts(verb: Perplexity) -> list[int]:
    return sample_counts(verb.n) if verb.by_samples else [verb.n]


def _blocks(windows: TokenWindows, verb: Perplexity, *, by_position: bool = False) -> Iterator[WindowBlock]:
    for first in range(0, len(windows), verb.block_contexts):
        yield WindowBlock(first, list(windows[first : first + verb.block_contexts]), by_position)


def _form(to_json: Any, from_json: Any, *, size: Any) -> BlockForm:
    return BlockForm(block=asdict, to_json=to_json, from_json=from_json, size=size)
