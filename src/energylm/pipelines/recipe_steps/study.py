"""Human studies as steps: a study made from models' completions, and a simulated panel that answers it."""

import shutil
from pathlib import Path

from energylm.config.study import PanelConfig, StudyConfig
from energylm.errors import ConfigError
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values

STUDY = "study"  # the folder inside a step's own
SALT = "simulated"  # nobody answers a recipe's study, and its answers are the same in every run


def _make_study(values: Values, folder: Path) -> Result:
    from energylm.pipelines.study_new import new_study

    shutil.rmtree(folder / STUDY, ignore_errors=True)  # of a run that was interrupted
    return new_study(StudyConfig.checked(values), output=folder / STUDY, salt=SALT).to_json()


def _run_panel(values: Values, folder: Path) -> Result:
    """Comparisons by name ("base_joint"), rows of table 2, exclusions; the study itself stays unanswered."""
    try:
        from energylm.pipelines.study_panel import run_panel
    except ModuleNotFoundError as absent:
        raise ConfigError(f"this step needs {absent.name}: pip install 'energylm[web]'") from None

    config = PanelConfig.checked(values)
    shutil.rmtree(folder / STUDY, ignore_errors=True)
    shutil.copytree(config.study, folder / STUDY)
    panel = run_panel(config.model_copy(update={"study": str(folder / STUDY)}), output=folder / "report")
    found = panel.to_json()
    del found["raters"]  # in the panel's own report
    by_name = {f"{one['first']}_{one['second']}": one for one in found.pop("comparisons")}
    return found | by_name | {"table": panel.table.records(), "convention": panel.table.convention}


STEPS = {
    "study": StepKind(StudyConfig, _make_study, product=STUDY, version=2),
    "study-panel": StepKind(PanelConfig, _run_panel),
}
