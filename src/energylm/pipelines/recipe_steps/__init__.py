"""What a recipe can make, by the name that recipes use; a new kind of step is a line in one of these files."""

from energylm.pipelines.recipe_steps import (
    chains,
    cloze,
    corpus,
    detect,
    discrimination,
    exact_study,
    finetune,
    probe,
    residual,
    scoring,
    study,
)
from energylm.pipelines.recipe_steps.kind import StepKind
from energylm.verbs.table import STEPS_ONLY, VERBS, verb_class

STEP_KINDS: dict[str, StepKind] = {
    **chains.STEPS,
    **cloze.STEPS,
    **corpus.STEPS,
    **detect.STEPS,
    **finetune.STEPS,
    **residual.STEPS,
    **discrimination.STEPS,
    **exact_study.STEPS,
    **probe.STEPS,
    **scoring.STEPS,
    **study.STEPS,
    **{name: StepKind.of_verb(verb_class(name)) for name in (VERBS | STEPS_ONLY)},
}
