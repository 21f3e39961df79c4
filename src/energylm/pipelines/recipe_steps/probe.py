"""Probes of an energy as steps: perturbations, gradient-guided edits, score differences (bakhtin2019 §5.6, E, F)."""

from pathlib import Path

from energylm.config.probe import AttackConfig, DifferencesConfig, PerturbConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values


def _perturb(values: Values, folder: Path) -> Result:
    from energylm.pipelines.probe_perturb import run_perturb

    return run_perturb(PerturbConfig.checked(values), output=folder).to_json()


def _attack(values: Values, folder: Path) -> Result:
    from energylm.pipelines.probe_attack import run_attack

    return run_attack(AttackConfig.checked(values), output=folder).to_json()


def _differences(values: Values, folder: Path) -> Result:
    from energylm.pipelines.probe_differences import run_differences

    return run_differences(DifferencesConfig.checked(values), output=folder).to_json()


STEPS = {
    "perturb": StepKind(PerturbConfig, _perturb),
    "attack": StepKind(AttackConfig, _attack),
    "differences": StepKind(DifferencesConfig, _differences),
}
