"""Real against machine text as steps: likelihood baselines, cells of a grid, and the grid that gathers them."""

from pathlib import Path

from energylm.config.grid import DiscriminationConfig, GridSummaryConfig, LikelihoodConfig
from energylm.pipelines.recipe_steps.kind import Result, StepKind, Values


def _fit_likelihood(values: Values, folder: Path) -> Result:
    from energylm.pipelines.discriminate import fit_likelihood

    energy = fit_likelihood(LikelihoodConfig.checked(values), output=folder / "model")
    return {"sign": energy.rule.sign, "threshold": energy.rule.threshold}


def _discriminate(values: Values, folder: Path) -> Result:
    from energylm.pipelines.discriminate import discriminate

    return discriminate(DiscriminationConfig.checked(values), output=folder).to_json()


def _gather(values: Values, folder: Path) -> Result:
    from energylm.files import read_json
    from energylm.pipelines.discriminate import RESULT_FILE
    from energylm.report.grid_report import GridCell, summarise

    cells = []
    for cell in GridSummaryConfig.checked(values).cells:
        found = None if cell.result is None else read_json(Path(cell.result) / RESULT_FILE)
        facts = cell.model_dump(exclude={"result"})
        cells.append(GridCell(**facts, measured=found))
    return summarise(cells)


STEPS = {
    "likelihood": StepKind(LikelihoodConfig, _fit_likelihood, product="model"),
    "discrimination": StepKind(DiscriminationConfig, _discriminate),
    "grid cells": StepKind(GridSummaryConfig, _gather),
}
