"""Windows measured in blocks: what `energylm perplexity` asks of a language model, and of a joint model.

The samples of a window depend on the seed and the window's index only, so blocks change nothing but the last bits of
sums that are taken over other batches; blocks of one size give the same bits on every engine.

Relations  `perplexity` cuts windows and joins what is found; `block_engine` does the blocks, `kept_blocks` keeps them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.measured_texts import MeasuredPositions, MeasuredTexts
from energylm.bundles.residual_measures import sample_counts
from energylm.bundles.weights_identity import model_identity
from energylm.config.perplexity import PerplexityConfig
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import Perplexity, perplexity
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.jobs.engine import Engine, Pool
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.pipelines.joint_model import load_joint
from energylm.progress import Progress, progress

Windows = Sequence[list[int]]


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


def measure_lm(
    engine: Engine, place: str, windows: Windows, config: PerplexityConfig, *, what: str, output: Path | None
) -> tuple[Perplexity, str]:
    """Perplexity of a language model alone, and its name."""
    job = {
        "task": "scores",
        "model": output and model_identity(place),
        "prefix": config.prefix,
        "plain_text": config.plain_text,
        "block": config.block_contexts,
    }
    kept = KeptBlocks(output, job, _form(lambda rows: rows, lambda rows: rows, size=lambda block: len(block.windows)))
    load = partial(LanguageModelWorker, place, prefix=config.prefix, plain_text=config.plain_text)
    with (
        engine.pool(load, models=[place]) as pool,
        progress(f"measuring {what}", total=len(windows), unit="window") as bar,
    ):
        facts = pool.facts()
        rows = [row for rows in kept.run(pool, _blocks(windows, config), progress=bar) for row in rows]
    log_probs, tokens, sizes = zip(*rows, strict=True)
    measured = perplexity(
        torch.tensor(log_probs, dtype=torch.float64),
        torch.tensor(tokens),
        torch.tensor(sizes),
        convention=facts["convention"],
    )
    return measured, facts["name"]


def measure_joint(
    engine: Engine, places: tuple[str, str], windows: Windows, config: PerplexityConfig, *, output: Path | None
) -> JointMeasures:
    """The joint model of the language model and the energy at `places`."""
    load = partial(JointWorker, *places, config)
    with engine.pool(load, models=places) as pool:
        facts = pool.facts()
        told = {"convention": facts["convention"], "caution": facts["caution"]}
        whole = MeasuredTexts.joined(_measured(pool, places, windows, config, by_position=False, output=output))
        steps = None
        if config.by_position:
            parts = _measured(pool, places, windows, config, by_position=True, output=output)
            steps = MeasuredPositions.joined(parts).perplexity(first_position=config.prefix + 1, **told)
    return JointMeasures(whole.perplexities(**told, confidence=config.confidence), steps, facts["name"])


def _measured(
    pool: Pool,
    places: Sequence[str],
    windows: Windows,
    config: PerplexityConfig,
    *,
    by_position: bool,
    output: Path | None,
) -> list[Any]:
    new = config.length - config.prefix
    measured = MeasuredPositions if by_position else MeasuredTexts
    tokens = config.position_samples * new * (new + 1) // 2 if by_position else config.n * new  # drawn for a window
    job = {
        "task": "positions" if by_position else "samples",
        "models": output and list(map(model_identity, places)),
        "counts": [config.position_samples] if by_position else _counts(config),
        "prefix": config.prefix,
        "plain_text": config.plain_text,
        "seed": config.seed,
        "block": config.block_contexts,
    }
    form = _form(measured.to_json, measured.from_json, size=lambda block: len(block.windows) * tokens)
    what = "measuring the joint model" + (" by position" if by_position else "")
    with progress(what, total=len(windows) * tokens, unit="token") as bar:
        blocks = _blocks(windows, config, by_position=by_position)
        return list(KeptBlocks(output, job, form).run(pool, blocks, progress=bar))


class LanguageModelWorker:
    """[log-probability, tokens, bytes] of each window."""

    def __init__(self, place: str, *, prefix: int, plain_text: bool) -> None:
        lm = LanguageModel.from_pretrained(place)
        self._lm, self._prefix = lm.without_special_tokens() if plain_text else lm, prefix

    def facts(self) -> Mapping[str, Any]:
        return {"name": self._lm.name, "convention": self._lm.convention(prefix_tokens=self._prefix, of_ids=True)}

    def __call__(self, block: WindowBlock, *, progress: Progress) -> list[list[float]]:
        scores = self._lm.score(block.windows, prefix_tokens=self._prefix)
        progress.advance(len(block.windows))
        return [[score.log_prob, score.tokens, score.bytes] for score in scores]


class JointWorker:
    """`MeasuredTexts` of a block, or `MeasuredPositions` where it asks for them."""

    def __init__(self, language_model: str, energy: str, config: PerplexityConfig) -> None:
        self._joint, self._config = load_joint(language_model, energy, plain_text=config.plain_text), config

    def facts(self) -> Mapping[str, Any]:
        convention = self._joint.convention([[0]], prefix_tokens=self._config.prefix)  # of windows that are ids
        caution = self._joint.caution(self._config.length)
        return {"name": self._joint.lm.name, "convention": convention, "caution": caution}

    def __call__(self, block: WindowBlock, *, progress: Progress) -> MeasuredTexts | MeasuredPositions:
        config = self._config
        shared = {
            "prefix_tokens": config.prefix,
            "seed": config.seed,
            "first_context": block.first,
            "progress": progress,
        }
        if block.by_position:
            return self._joint.measure_steps(block.windows, n=config.position_samples, **shared)
        return self._joint.measure(block.windows, counts=_counts(config), **shared)


def _counts(config: PerplexityConfig) -> list[int]:
    return sample_counts(config.n) if config.by_samples else [config.n]


def _blocks(windows: Windows, config: PerplexityConfig, *, by_position: bool = False) -> Iterator[WindowBlock]:
    for first in range(0, len(windows), config.block_contexts):
        yield WindowBlock(first, list(windows[first : first + config.block_contexts]), by_position)


def _form(to_json: Any, from_json: Any, *, size: Any) -> BlockForm:
    return BlockForm(block=asdict, to_json=to_json, from_json=from_json, size=size)
