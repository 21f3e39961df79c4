"""Residual energy models as steps: language models, masked models, negatives, energies, perplexity, samples."""

from pathlib import Path

from energylm.config.analysis import RepetitionsConfig, SampledTextConfig
from energylm.config.negatives import NegativesConfig
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
    "sampled-text": StepKind(SampledTextConfig, _compare_sampled_text, version=PLAIN_TEXT),
    "repetitions": StepKind(RepetitionsConfig, _tabulate_repetitions, version=PLAIN_TEXT),
}
