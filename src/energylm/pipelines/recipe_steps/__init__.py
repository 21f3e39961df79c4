"""Kinds of steps that are no verbs yet, by the name that recipes use. TO BE DELETED WHEN EMPTY.

Importing it registers them with the engine of recipes (`verbs.recipes.step_kind.UNCONVERTED`).
"""

from dataclasses import replace

from energylm.pipelines.plan_steps import COUNTS
from energylm.pipelines.recipe_steps import (
    cloze,
    detect,
    discrimination,
    finetune,
    probe,
    residual,
    scoring,
    study,
)
from energylm.pipelines.recipe_steps.kind import StepKind
from energylm.verbs.recipes.step_kind import UNCONVERTED

STEP_KINDS: dict[str, StepKind] = {
    **cloze.STEPS,
    **detect.STEPS,
    **finetune.STEPS,
    **residual.STEPS,
    **discrimination.STEPS,
    **probe.STEPS,
    **scoring.STEPS,
    **study.STEPS,
}
UNCONVERTED.update({name: replace(kind, count=COUNTS.get(name)) for name, kind in STEP_KINDS.items()})
