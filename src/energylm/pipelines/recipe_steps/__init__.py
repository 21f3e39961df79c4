"""What a recipe can make, by the name that recipes use; a new kind of step is a line in one of these files."""

from energylm.pipelines.recipe_steps import cloze, corpus, detect, discrimination, probe, residual, scoring
from energylm.pipelines.recipe_steps.kind import StepKind

STEP_KINDS: dict[str, StepKind] = {
    **cloze.STEPS,
    **corpus.STEPS,
    **detect.STEPS,
    **residual.STEPS,
    **discrimination.STEPS,
    **probe.STEPS,
    **scoring.STEPS,
}
