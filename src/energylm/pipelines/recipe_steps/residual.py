"""Residual energy models as steps: language models, masked models, negatives, energies, perplexity, samples."""

from pathlib import Path

from energylm.config.analysis import RepetitionsConfig, SampledTextConfig
from energylm.config.negatives import NegativesConfig
from energylm.config.perplexity import PerplexityConfig
from energylm.config.pretrain import PretrainMLMConfig
from energylm.config.train_energy import TrainEnergyConfig
from energylm.config.train_lm import TrainLMConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values


def _train_lm(values: Values, folder: Path) -> Result:
    from energylm.pipelines.train_lm import plan_lm, train_lm

    config = TrainLMConfig.checked(values)
    run = train_lm(config, output=folder)
    return {
        "parameters": plan_lm(config, output=folder).parameters,
        "perplexity": run.best_perplexity.value if run.best_perplexity else None,
        "steps": run.steps,
        "tokens_per_second": run.tokens_per_second,
    }


def _pretrain_mlm(values: Values, folder: Path) -> Result:
    from energylm.pipelines.pretrain_mlm import plan_mlm, pretrain_mlm

    config = PretrainMLMConfig.checked(values)
    run = pretrain_mlm(config, output=folder)
    return {
        "parameters": plan_mlm(config, output=folder).parameters,
        "nats": run.nats_per_masked_token,
        "accuracy": run.accuracy,
        "steps": run.steps,
        "tokens_per_second": run.tokens_per_second,
    }


def _train_energy(values: Values, folder: Path) -> Result:
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


def _make_negatives(values: Values, folder: Path) -> Result:
    from energylm.pipelines.negatives import make_negatives

    run = make_negatives(NegativesConfig.checked(values), output=folder)
    return {"contexts": run.manifest.contexts, "tokens": run.manifest.tokens}


def _measure_perplexity(values: Values, folder: Path) -> Result:
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
            "certified_bound": run.joint.certified.bound,
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


def _compare_sampled_text(values: Values, folder: Path) -> Result:
    from energylm.pipelines.sampled_text import compare_sampled_text

    return compare_sampled_text(SampledTextConfig.checked(values)).to_json()


def _tabulate_repetitions(values: Values, folder: Path) -> Result:
    from energylm.pipelines.repetitions import repetition_tables

    return repetition_tables(RepetitionsConfig.checked(values)).to_json()


PLAIN_TEXT = 2  # version: models that continue windows within documents write no special tokens any more

STEPS = {
    "lm": StepKind(TrainLMConfig, _train_lm, product="model"),
    "mlm": StepKind(PretrainMLMConfig, _pretrain_mlm, product="model"),
    "negatives": StepKind(NegativesConfig, _make_negatives, version=PLAIN_TEXT),
    "energy": StepKind(TrainEnergyConfig, _train_energy, product="model"),
    "perplexity": StepKind(
        PerplexityConfig, _measure_perplexity, version=PLAIN_TEXT, apart_from=frozenset({"block_contexts"})
    ),
    "sampled-text": StepKind(SampledTextConfig, _compare_sampled_text, version=PLAIN_TEXT),
    "repetitions": StepKind(RepetitionsConfig, _tabulate_repetitions, version=PLAIN_TEXT),
}
