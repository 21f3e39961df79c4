"""Language models and masked models as steps."""

from pathlib import Path

from energylm.config.pretrain import PretrainMLMConfig
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


STEPS = {
    "lm train": StepKind(TrainLMConfig, _train_lm, product="model"),
    "pretrain mlm": StepKind(PretrainMLMConfig, _pretrain_mlm, product="model"),
}
