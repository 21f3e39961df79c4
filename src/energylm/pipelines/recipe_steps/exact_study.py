"""Exact studies of training objectives as a step (goyal2021 table 6.1 and figure 6.1)."""

from pathlib import Path

from energylm.config.exact_study import ExactStudyConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values


def _study(values: Values, folder: Path) -> Result:
    from energylm.pipelines.exact_study import run_exact_study

    return run_exact_study(ExactStudyConfig.checked(values), output=folder).to_json()


STEPS = {"exact_study": StepKind(ExactStudyConfig, _study)}
