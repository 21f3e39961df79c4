"""What a recipe can make, by the name that recipes use; a new kind of step is a line in one of these files."""

from energylm.pipelines.recipe_steps import corpus, residual
from energylm.pipelines.recipe_steps.kind import StepKind

STEP_KINDS: dict[str, StepKind] = {**corpus.STEPS, **residual.STEPS}
