"""Base, joint, certified and baseline perplexity of one set of windows: `energylm perplexity`.

Windows come from a corpus (chosen at random) or from a text file (evenly spaced). All models score
the same tokens, in blocks of windows (`perplexity_blocks`). With `output` finished blocks are kept there, so that a
killed run goes on where it stopped, and a report is written beside the numbers.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.bundles.known_models import absolute_place, locate
from energylm.bundles.language_model import LanguageModel
from energylm.config.engine import HERE, EngineConfig
from energylm.config.perplexity import PerplexityConfig
from energylm.data.corpus import Corpus
from energylm.data.tokenizer import load_tokenizer, plain_encoder, tokenizer_sha256
from energylm.data.windows import Windows
from energylm.errors import VocabularyMismatch
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.perplexity import Perplexity
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.evaluation.joint_report import joint_sections, perplexity_table
from energylm.tables import Table
from energylm.files import folder_lock
from energylm.jobs.engine import Engine, open_engine
from energylm.pipelines.perplexity_blocks import measure_joint, measure_lm
from energylm.pipelines.score_lm import even_windows, existing, read_whole
from energylm.progress import say
from energylm.report.report import write_report

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class PerplexityRun:
    """Everything that was measured; `report` is the page, where one was asked for."""

    windows: str  # which they were, in words
    name: str  # of the base
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
                {
                    "n": at.n,
                    "lower": at.lower,
                    "upper": at.upper,
                    "certified": at.certified.value,
                    "certified_bound": at.certified.bound,
                }
                for at in self.by_samples
            ],
            "by_position": self.by_position.to_json() if self.by_position else None,
        }


def run_perplexity(
    config: PerplexityConfig, *, output: Path | None = None, engine: EngineConfig = HERE
) -> PerplexityRun:
    """Measure all models of `config`; with `output` also write a report there."""
    check_inputs(config)
    with nullcontext() if output is None else folder_lock(output), open_engine(engine) as opened:
        run = _measure(config, opened, output)
        if output is None:
            return run
        sections = joint_sections(run.table, run.joint, run.by_samples, run.by_position)
        return replace(run, report=write_report(output, title=f"Perplexity of {run.name}", sections=sections))


def _measure(config: PerplexityConfig, engine: Engine, output: Path | None) -> PerplexityRun:
    models = {"base": config.language_model, "RALM": config.ralm, "BALM": config.balm}
    places = {name: absolute_place(LanguageModel.located(path)) for name, path in models.items() if path is not None}
    base = places.pop("base")
    tokenizer = load_tokenizer(base)
    for name, place in places.items():
        _refuse_other_tokens(place, tokenizer, name=name)
    windows = load_windows(config, tokenizer)
    where = f"{config.split}, documents {config.documents}" if Path(config.source).is_dir() else "evenly spaced"
    described = f"{len(windows)} windows of {config.length} tokens of {Path(config.source).name} ({where})"
    baselines = {
        name: measure_lm(engine, place, windows, config, what=name, output=output)[0] for name, place in places.items()
    }
    if config.energy is None:
        alone, name = measure_lm(engine, base, windows, config, what="the language model", output=output)
        return PerplexityRun(described, name, alone, baselines)
    found = measure_joint(engine, (base, absolute_place(config.energy)), windows, config, output=output)
    *_, joint = found.by_samples
    if warning := joint.warning or (found.by_position and found.by_position.warning):
        say(f"energylm: {warning}")
    by_samples = found.by_samples if config.by_samples else []
    return PerplexityRun(described, found.name, joint.base, baselines, joint, by_samples, found.by_position)


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


def load_windows(config: PerplexityConfig, tokenizer: "PreTrainedTokenizerFast") -> list[list[int]]:
    """The windows of the corpus or file, as ids of the language model's tokenizer."""
    source = Path(config.source)
    if not source.is_dir():
        text = read_whole(source, field=config.field)
        tokens = plain_encoder(tokenizer).encode(text, add_special_tokens=False).ids
        return even_windows(tokens, windows=config.contexts, length=config.length, file=source)
    corpus = Corpus.open(source)
    if corpus.manifest.tokenizer.sha256 != tokenizer_sha256(tokenizer):
        raise VocabularyMismatch(
            f"{source} is tokenised with {corpus.vocabulary_size:,} tokens of its own but {config.language_model} "
            f"reads its {len(tokenizer):,}; build the corpus with --tokenizer {config.language_model}, or give a text "
            "file"
        )
    windows = _corpus_windows(config)
    chosen = windows.choose(config.contexts, seed=config.seed)
    if len(chosen) < config.contexts:
        say(f"energylm: {source} has {len(chosen)} windows of {config.length} tokens, {config.contexts} were asked for")
    return windows.gather(chosen).tolist()


def _corpus_windows(config: PerplexityConfig) -> Windows:
    return Windows(Corpus.open(config.source), config.split, length=config.length, documents=config.documents)


def _refuse_other_tokens(place: str, base: "PreTrainedTokenizerFast", *, name: str) -> None:
    """A baseline scores the very tokens that the base scores."""
    tokenizer = load_tokenizer(place)
    if tokenizer_sha256(tokenizer) != tokenizer_sha256(base):
        raise VocabularyMismatch(
            f"{name} {place} reads {len(tokenizer):,} tokens but the base {len(base):,} others; "
            "perplexities per token compare models of one tokenizer only: train it on the base's corpus"
        )
