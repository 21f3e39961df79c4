"""Base, joint, certified and baseline perplexity of one set of windows: `energylm perplexity`.

Windows come from a corpus (chosen at random) or from a text file (evenly spaced). All models score
the same tokens. With `output` a report is written beside the numbers.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import locate
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_measures import sample_counts
from energylm.config.perplexity import PerplexityConfig
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import VocabularyMismatch
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import Perplexity
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.evaluation.joint_report import joint_sections, perplexity_table
from energylm.evaluation.report import write_report
from energylm.evaluation.tables import Table
from energylm.pipelines.joint_model import load_joint
from energylm.pipelines.score_lm import even_windows, existing, read_whole
from energylm.progress import say


@dataclass(frozen=True)
class PerplexityRun:
    """Everything that was measured; `report` is the page, where one was asked for."""

    windows: str  # which they were, in words
    base: Perplexity
    baselines: dict[str, Perplexity]
    joint: JointPerplexity | None = None
    by_samples: list[JointPerplexity] = field(default_factory=list)
    by_position: PositionPerplexity | None = None
    report: Path | None = None

    @property
    def table(self) -> Table:
        table = perplexity_table(self.base, self.joint, self.baselines)
        return replace(table, convention=f"{self.windows}; {table.convention}")

    def to_json(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "table": self.table.records(),
            "base": self.base.to_json(),
            "baselines": {name: measured.to_json() for name, measured in self.baselines.items()},
            "joint": self.joint.to_json() if self.joint else None,
            "by_samples": [
                {"n": at.n, "lower": at.lower, "upper": at.upper, "certified": at.certified.value}
                for at in self.by_samples
            ],
            "by_position": self.by_position.to_json() if self.by_position else None,
        }


def run_perplexity(config: PerplexityConfig, *, output: Path | None = None) -> PerplexityRun:
    """Measure all models of `config`; with `output` also write a report there."""
    check_inputs(config)
    joint = None if config.energy is None else load_joint(config.language_model, config.energy)
    lm = LanguageModel.from_pretrained(config.language_model) if joint is None else joint.lm
    windows = load_windows(config, lm)
    where = f"{config.split}, documents {config.documents}" if Path(config.source).is_dir() else "evenly spaced"
    described = f"{len(windows)} windows of {config.length} tokens of {Path(config.source).name} ({where})"
    baselines = {
        name: _baseline(path, lm, name=name).perplexity(windows, prefix_tokens=config.prefix)
        for name, path in (("RALM", config.ralm), ("BALM", config.balm))
        if path is not None
    }
    if joint is None:
        run = PerplexityRun(described, lm.perplexity(windows, prefix_tokens=config.prefix), baselines)
    else:
        counts = sample_counts(config.n) if config.by_samples else [config.n]
        results = joint.perplexity_by_samples(windows, counts=counts, prefix_tokens=config.prefix, seed=config.seed)
        by_position = None
        if config.by_position:
            by_position = joint.stepwise(
                windows, prefix_tokens=config.prefix, n=config.position_samples, seed=config.seed
            )
        by_samples = results if config.by_samples else []
        run = PerplexityRun(described, results[-1].base, baselines, results[-1], by_samples, by_position)
    if output is None:
        return run
    sections = joint_sections(run.table, run.joint, run.by_samples, run.by_position)
    return replace(run, report=write_report(output, title=f"Perplexity of {lm.name}", sections=sections))


def check_inputs(config: PerplexityConfig) -> str:
    """Find every input without loading a model; what would be done, in words."""
    for model in filter(None, (config.language_model, config.energy, config.ralm, config.balm)):
        locate(model)
    source = existing(Path(config.source))
    if source.is_dir():
        found = len(_corpus_windows(config))
        where = f"{min(config.contexts, found)} of {found:,} windows of {config.source} ({config.split})"
    else:
        where = f"{config.contexts} windows of {config.source}"
    joint = f", the joint model with {config.energy} from {config.n:,} samples a window" if config.energy else ""
    return f"would measure {config.language_model}{joint} on tokens {config.prefix + 1} to {config.length} of {where}"


def load_windows(config: PerplexityConfig, lm: LanguageModel) -> list[list[int]]:
    """The windows of the corpus or file, as ids of the language model's tokenizer."""
    source = Path(config.source)
    if not source.is_dir():
        tokens = lm.encode(read_whole(source, field=config.field))
        return even_windows(tokens, windows=config.contexts, length=config.length, file=source)
    corpus = Corpus.open(source)
    if corpus.manifest.tokenizer.sha256 != tokenizer_sha256(lm.tokenizer):
        raise VocabularyMismatch(
            f"{source} is tokenised with {corpus.vocabulary_size:,} tokens of its own but {lm.name} reads its "
            f"{len(lm.tokenizer):,}; build the corpus with --tokenizer {config.language_model}, or give a text file"
        )
    windows = _corpus_windows(config)
    chosen = windows.choose(config.contexts, seed=config.seed)
    if len(chosen) < config.contexts:
        say(f"energylm: {source} has {len(chosen)} windows of {config.length} tokens, {config.contexts} were asked for")
    return windows.gather(chosen).tolist()


def _corpus_windows(config: PerplexityConfig) -> Windows:
    return Windows(Corpus.open(config.source), config.split, length=config.length, documents=config.documents)


def _baseline(path: str, lm: LanguageModel, *, name: str) -> LanguageModel:
    """A model that scores the very tokens that the base scores."""
    baseline = LanguageModel.from_pretrained(path)
    if tokenizer_sha256(baseline.tokenizer) != tokenizer_sha256(lm.tokenizer):
        raise VocabularyMismatch(
            f"{name} {path} reads {len(baseline.tokenizer):,} tokens but the base {len(lm.tokenizer):,} others; "
            "perplexities per token compare models of one tokenizer only: train it on the base's corpus"
        )
    return baseline
