"""Cloze models as steps: Electric, ELECTRA and ELECTRA-TT (by `noise`), two-tower; and what runs cost.

Masked and causal models are in `residual`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from energylm.config.pretrain import PretrainElectraConfig, PretrainElectricConfig, PretrainTwoTowerConfig
from energylm.config.pretrain_costs import PretrainCostsConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

if TYPE_CHECKING:
    from energylm.pipelines.pretrain_common import PretrainPlan, PretrainRun


def _electric(values: Values, folder: Path) -> Result:
    from energylm.pipelines.pretrain_electric import plan_electric, pretrain_electric

    config = PretrainElectricConfig.checked(values)
    return _result(pretrain_electric(config, output=folder), plan_electric(config, output=folder))


def _electra(values: Values, folder: Path) -> Result:
    from energylm.pipelines.pretrain_electra import plan_electra, pretrain_electra

    config = PretrainElectraConfig.checked(values)
    return _result(pretrain_electra(config, output=folder), plan_electra(config, output=folder))


def _two_tower(values: Values, folder: Path) -> Result:
    from energylm.pipelines.pretrain_two_tower import plan_two_tower, pretrain_two_tower

    config = PretrainTwoTowerConfig.checked(values)
    return _result(pretrain_two_tower(config, output=folder), plan_two_tower(config, output=folder))


def _result(run: "PretrainRun", plan: "PretrainPlan") -> Result:
    return {
        "parameters": plan.parameters,
        "steps": run.steps,
        "compute": run.compute,
        "tokens_per_second": run.tokens_per_second,
        **run.validation,
    }


def _costs(values: Values, folder: Path) -> Result:
    """Every run's cost by its name, and how far the dearest lies above the cheapest."""
    from energylm.pipelines.pretrain_costs import pretrain_costs

    costs = pretrain_costs(PretrainCostsConfig.checked(values))
    spent = [cost.tflop for cost in costs.values()]
    return {name: cost.to_json() for name, cost in costs.items()} | {"spread": max(spent) / min(spent) - 1}


STEPS = {
    "electric": StepKind(PretrainElectricConfig, _electric, product="model"),
    "electra": StepKind(PretrainElectraConfig, _electra, product="model"),
    "two-tower": StepKind(PretrainTwoTowerConfig, _two_tower, product="model"),
    "pretrain-costs": StepKind(PretrainCostsConfig, _costs),
}
