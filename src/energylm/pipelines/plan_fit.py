"""Fit the factors of a plan to kept results whose steps were timed: `energylm plan --fit RESULTS`.

The results must come from the machine whose rates are given. What a factor means, and how it is used: `plan`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from energylm.config.plan import MachineConfig, PlanConfig
from energylm.errors import ConfigError, DataError
from energylm.files import read_json, write_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.pipelines.plan import FACTORS_FILE, plan_cost, unit_seconds

# Small networks alone do not tell products from traffic. Nothing is faster than the machine's best; and large networks
# run at 0.4 of it or better (`energylm bench shared-prefix`, drawing; the demo's energy, training).
FLOPS_BOUNDS = (1.0, 2.5)
_TITLE = re.compile(r"(?:energylm )?(?P<name>[^\s,]+)(?:, scale (?P<scale>\w+)(?:, (?P<corpus>[\w-]+))?:|$)")


def fit_factors(
    results: Sequence[Path], machine: MachineConfig, *, store: ArtefactStore | None = None
) -> dict[str, Any]:
    """Factors with which the steps in these kept results (`results.json` of recipes, run on `machine`) come out as they
    were measured: least squares, within bounds. Written back by `save_factors`."""
    import numpy as np
    from scipy.optimize import lsq_linear

    rows, measured = [], []
    for file in results:
        quantities, seconds = timed_steps(file, machine, store)
        rows += quantities
        measured += seconds
    names = sorted({name for row in rows for name in row})
    design = np.array([[row.get(name, 0.0) * unit_seconds(name, machine) for name in names] for row in rows])
    weight = 1 / np.sqrt(np.array(measured))  # between equal seconds and equal parts: long steps matter more
    lowest, highest = zip(*(FLOPS_BOUNDS if name.endswith(".flops") else (0.0, np.inf) for name in names), strict=True)
    found = lsq_linear(design * weight[:, None], np.array(measured) * weight, bounds=(lowest, highest)).x
    predicted = design @ found
    return {
        "factors": {name: round(float(value), 4) for name, value in zip(names, found, strict=True)},
        "measured_on": machine.model_dump(mode="json"),
        "fitted_to": [file.name for file in results],
        "total_over_measured": float(predicted.sum() / sum(measured)),
    }


def save_factors(fitted: Mapping[str, Any], file: Path = FACTORS_FILE) -> None:
    """Put fitted factors into the package's file; those of quantities that did not occur stay."""
    kept = read_json(file)
    write_json(file, {**kept, **fitted, "factors": {**kept["factors"], **fitted["factors"]}})


def timed_steps(
    file: Path, machine: MachineConfig, store: ArtefactStore | None
) -> tuple[list[Mapping[str, float]], list[float]]:
    """Quantities and measured seconds of the counted steps of a kept result."""
    kept = read_json(file)
    try:
        told = _TITLE.match(kept["title"])
        seconds = {row["step"]: row["seconds when made"] for row in kept["sections"]["steps"]["rows"]}
    except (KeyError, TypeError):
        told = None
    if told is None:
        raise DataError(f"{file} is no result with timed steps; give a results.json of `reproduce` or of the demo")
    config = PlanConfig.checked({name: value for name, value in told.groupdict().items() if value} | {"fresh": True})
    steps = [step for step in plan_cost(config, machine, store=store).steps if step.seconds is not None]
    if missing := [step.name for step in steps if step.name not in seconds]:
        raise ConfigError(f"{file} has no time of step {missing[0]!r}: it is of another version of the recipe")
    return [step.quantities for step in steps], [seconds[step.name] for step in steps]
