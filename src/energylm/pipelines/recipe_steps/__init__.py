"""Kinds of steps that are no verbs yet, by the name that recipes use. TO BE DELETED WHEN EMPTY.

Importing it registers them with the engine of recipes (`verbs.recipes.step_kind.UNCONVERTED`).
"""

from energylm.pipelines.recipe_steps import (
    finetune,
)
from energylm.pipelines.recipe_steps.kind import StepKind
from energylm.verbs.recipes.step_kind import UNCONVERTED

STEP_KINDS: dict[str, StepKind] = {
    **finetune.STEPS,
}
UNCONVERTED.update(STEP_KINDS)
