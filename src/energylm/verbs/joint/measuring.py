"""Windows measured in blocks, and the record of it with its table and plots: the work of `energylm perplexity`.

The samples of a window depend on the seed and the window's index only, so blocks change nothing but the last bits of
sums that are taken over other batches; blocks of one size give the same bits on every engine.

Relations  `perplexity` declares the verb; `jobs.engine` does the blocks, `jobs.kept_blocks` keeps them.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from energylm.bundles.known_models import absolute_place
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.bundles.residual_measures import MeasuredPositions, MeasuredTexts, PerplexityBySamples, sample_counts
from energylm.bundles.residual_model import ResidualModel
from energylm.data.tokenizer import load_tokenizer, tokenizer_sha256
from energylm.errors import ConfigError, VocabularyMismatch
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import PerplexityEstimate, perplexity
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.files import folder_lock
from energylm.jobs.engine import Engine, Pool, open_engine
from energylm.jobs.job import Job
from energylm.jobs.kept_blocks import BlockForm, KeptBlocks
from energylm.progress import Progress, progress, say
from energylm.records import LOCAL, Record
from energylm.report.plots import LinePlot
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Cell, Table
from energylm.verbs.joint.perplexity import Perplexity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

COLUMNS = ("model", "perplexity", "upper end", "standard error", "bits per byte", "upper bits per byte", "tokens")
BASE, JOINT, CERTIFIED = "base LM", "joint model", "joint sampler, certified"
MEANING = """
The joint model multiplies the language model's probability by exp(−energy). Its normaliser is estimated from samples,
so its perplexity is an interval: the lower end is too low on average, whatever the number of samples, and the upper end
is an upper bound for many samples only. The effective sample size (ESS) says how many independent samples the weighted
ones of a context are worth; where it is below 20, a few lucky samples decide and the interval should not be trusted.

The certified row needs no such trust. Drawing as many candidates and keeping one by its weight is itself a model of
text. Its perplexity is at most this number in expectation over the samples, however few they are; a single run may give
less, where large weights are rare. The upper end of the row is what holds for a single run: with the stated confidence
over the samples, the sampler's perplexity of these very texts is at most that, whatever the energy. The standard error
is over texts, each with samples of its own; it speaks of other texts, and is one for many texts only.
""".strip()


@dataclass(frozen=True, repr=False)
class PerplexityResult(Record):
    """Everything that was measured; `report` is the page, where one was asked for."""

    windows: str  # which they were, in words
    name: str  # of the base
    base: PerplexityEstimate
    baselines: dict[str, PerplexityEstimate]  # ralm, balm
    joint: JointPerplexity | None = None
    by_samples: tuple[JointPerplexity, ...] = ()
    by_position: PositionPerplexity | None = None
    report: Path | None = field(default=None, metadata=LOCAL)

    computed = ("convention",)

    @property
    def table(self) -> Table:
        table = perplexity_table(self.base, self.joint, self.baselines)
        return replace(table, convention=f"{self.windows}; {table.convention}")

    @property
    def convention(self) -> str:
        return self.table.convention

    def summary(self) -> str | None:
        return None if self.joint is None else self.joint.summary()

    def plot(self) -> LinePlot:
        """The interval as it closes, else the gain at each position, where either was asked for."""
        if self.by_samples:
            return PerplexityBySamples(list(self.by_samples)).plot()
        if self.by_position is None:
            raise ConfigError("one measurement has no plot; ask for by_samples or by_position")
        return self.by_position.plot()

    def sections(self) -> list[Section]:
        """The parts of a report."""
        joint, by_samples, by_position = self.joint, self.by_samples, self.by_position
        sections: list[Section] = [Numbers("Perplexity", self.table)]
        if joint is not None:
            sections += [Text("What the interval means", MEANING), Numbers("How far to trust it", trust_table(joint))]
        if by_samples:
            first, last = by_samples[0], by_samples[-1]
            alt = (
                f"Perplexity over samples a context. The interval goes from {first.lower:.4g} to {first.upper:.4g} "
                f"with {first.n:,} samples to {last.lower:.4g} to {last.upper:.4g} with {last.n:,}; the base has "
                f"{last.base.value:.4g}."
            )
            closing = PerplexityBySamples(list(by_samples)).plot()
            sections.append(Plot("Perplexity by number of samples", closing, alt=alt))
        if by_position is not None:
            (low, high), exact = by_position.gain[-1], by_position.base[-1].value - by_position.last_exact.value
            alt = (
                f"Perplexity gained at positions {by_position.positions[0]} to {by_position.positions[-1]}. First: "
                f"{by_position.gain[0][0]:.3g} to {by_position.gain[0][1]:.3g}; last: {low:.3g} to {high:.3g}, "
                f"exactly {exact:.3g}."
            )
            sections.append(Plot("Perplexity gain by position", by_position.plot(), alt=alt))
        return sections


@dataclass(frozen=True)
class WindowBlock:
    first: int  # the index of the first window
    windows: list[list[int]]
    by_position: bool = False


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
    measuring = _Measuring(verb, engine, verb.windows.load(tokenizer, model=verb.language_model), output)
    described = verb.windows.describe(len(measuring.windows))
    baselines = {name: measuring.language_model(path, what=name.upper())[0] for name, path in paths.items()}
    if verb.energy is None:
        alone, name = measuring.language_model(base, what="the language model")
        return PerplexityResult(described, name, alone, baselines)
    by_samples, by_position, name = measuring.joint_model(base, absolute_place(verb.energy))
    joint = by_samples[-1]
    if warning := joint.warning or (by_position and by_position.warning):
        say(f"energylm: {warning}")
    shown = tuple(by_samples) if verb.by_samples else ()
    return PerplexityResult(described, name, joint.base, baselines, joint, shown, by_position)


def _refuse_other_tokens(path: str, base: "PreTrainedTokenizerFast", *, name: str) -> None:
    """A baseline scores the very tokens that the base scores."""
    tokenizer = load_tokenizer(path)
    if tokenizer_sha256(tokenizer) != tokenizer_sha256(base):
        raise VocabularyMismatch(
            f"{name} {path} reads {len(tokenizer):,} tokens but the base {len(base):,} others; "
            "perplexities per token compare models of one tokenizer only: train it on the base's corpus"
        )


@dataclass(frozen=True)
class _Measuring:
    """The same windows for every model, in blocks that are kept in `output`."""

    verb: Perplexity
    engine: Engine
    windows: Sequence[list[int]]
    output: Path | None

    def language_model(self, path: str, *, what: str) -> tuple[PerplexityEstimate, str]:
        """Perplexity of a language model alone, and its name."""
        job = {"task": "scores", "model": self.output and model_identity(path)}
        load = partial(LanguageModelWorker, path, prefix=self.verb.prefix_tokens, plain_text=self.verb.plain_text)
        with self.engine.pool(load, models=[path]) as pool:
            facts = pool.facts()
            blocks = self._blocks(pool, job, what=f"measuring {what}", unit="window")
        log_probs, tokens, sizes = zip(*(row for rows in blocks for row in rows), strict=True)
        measured = perplexity(
            torch.tensor(log_probs, dtype=torch.float64),
            torch.tensor(tokens),
            torch.tensor(sizes),
            convention=facts["convention"],
        )
        return measured, facts["name"]

    def joint_model(
        self, language_model: str, energy: str
    ) -> tuple[list[JointPerplexity], PositionPerplexity | None, str]:
        """The joint model by number of samples and, if asked for, by position; and the name of its base."""
        verb, models = self.verb, (language_model, energy)
        new = verb.length - verb.prefix_tokens
        job = {"models": self.output and list(map(model_identity, models)), "seed": verb.seed}
        what = "measuring the joint model"
        with self.engine.pool(partial(JointWorker, *models, verb), models=models) as pool:
            facts = pool.facts()
            told = {"convention": facts["convention"], "caution": facts["caution"]}
            of_samples = job | {"task": "samples", "counts": _counts(verb)} | _particles_key(verb)
            blocks = self._blocks(pool, of_samples, what=what, kind=MeasuredTexts, tokens=verb.n * new)
            by_samples = MeasuredTexts.joined(blocks).perplexities(**told, confidence=verb.confidence)
            if not verb.by_position:
                return by_samples, None, facts["name"]
            of_positions = job | {"task": "positions", "counts": [verb.position_samples]}
            tokens = verb.position_samples * new * (new + 1) // 2
            blocks = self._blocks(
                pool, of_positions, what=f"{what} by position", kind=MeasuredPositions, tokens=tokens, by_position=True
            )
        steps = MeasuredPositions.joined(blocks)
        return by_samples, steps.perplexity(first_position=verb.prefix_tokens + 1, **told), facts["name"]

    def _blocks(
        self,
        pool: Pool,
        job: Mapping[str, Any],
        *,
        what: str,
        kind: type[MeasuredTexts] | type[MeasuredPositions] | None = None,
        unit: str = "token",
        tokens: int = 1,
        by_position: bool = False,
    ) -> list[Any]:
        """What comes of every block, as `kind` (else plain rows); the bar counts `tokens` for each window."""
        verb = self.verb
        job = {**job, "prefix": verb.prefix_tokens, "plain_text": verb.plain_text, "block": verb.block_contexts}
        form = BlockForm(
            block=asdict,
            to_json=kind.to_json if kind else list,
            from_json=kind.from_json if kind else list,
            size=lambda block: len(block.windows) * tokens,
        )
        starts = range(0, len(self.windows), verb.block_contexts)
        blocks = (
            WindowBlock(first, list(self.windows[first : first + verb.block_contexts]), by_position) for first in starts
        )
        with progress(what, total=len(self.windows) * tokens, unit=unit) as bar:
            return list(KeptBlocks(self.output, job, form).run(pool, blocks, progress=bar))


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
        particles = verb.particles if verb.sampler == "smc" else None
        return self._joint.measure(block.windows, counts=_counts(verb), particles=particles, **shared)


def _particles_key(verb: Perplexity) -> dict[str, Any]:
    """What tells blocks of particles from those of independent draws."""
    return {"particles": verb.particles.model_dump(mode="json")} if verb.sampler == "smc" else {}


def _counts(verb: Perplexity) -> list[int]:
    return sample_counts(verb.n) if verb.by_samples else [verb.n]


def perplexity_table(
    base: PerplexityEstimate, joint: JointPerplexity | None, baselines: Mapping[str, PerplexityEstimate]
) -> Table:
    """All models in one table; an interval has an upper end, and so has the certificate: its bound with confidence."""
    rows = [_row(BASE, base), *(_row(name.upper(), measured) for name, measured in baselines.items())]
    if joint is not None:
        rows += [
            _row(JOINT, joint.optimistic, upper=(joint.pessimistic.value, joint.pessimistic.bits_per_byte)),
            _row(CERTIFIED, joint.certified, upper=(joint.certified.bound, joint.certified.bound_bits_per_byte)),
        ]
    return Table(COLUMNS, rows, convention=base.convention if joint is None else joint.convention)


def trust_table(joint: JointPerplexity) -> Table:
    """What the interval stands on."""
    estimate = joint.log_partition
    rows: list[list[Cell]] = [
        ["samples a context", joint.n],
        ["contexts", joint.base.sequences],
        ["effective sample size, median", joint.ess.median],
        ["effective sample size, smallest", joint.ess.smallest],
        ["largest share of one sample", float(estimate.largest_share.max())],
        ["perplexity that other samples would move (one standard error)", joint.sampling_error],
        ["mean estimated log Z, nats", float(estimate.lower.mean())],
    ]
    return Table(["what", "value"], rows, convention=joint.warning or "nothing speaks against the interval")


def _row(
    name: str, lower: PerplexityEstimate, *, upper: tuple[float | None, float | None] = (None, None)
) -> list[Cell]:
    """`upper` is the upper end, as perplexity and in bits per byte."""
    return [
        name,
        lower.value,
        upper[0],
        lower.standard_error if lower.standard_error is not None and math.isfinite(lower.standard_error) else None,
        lower.bits_per_byte,
        upper[1],
        lower.tokens,
    ]
