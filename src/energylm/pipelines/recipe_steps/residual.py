"""Masked models as steps."""

from pathlib import Path

from energylm.config.pretrain import PretrainMLMConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values


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
    "pretrain mlm": StepKind(PretrainMLMConfig, _pretrain_mlm, product="model"),
}
