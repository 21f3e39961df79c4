"""Fit the factors of a plan to kept results whose steps were timed: `energylm plan --fit RESULTS`.

The results must come from the machine whose rates are given. What a factor means, and how it is used: `plan`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from energylm.errors import ConfigError, DataError
from energylm.files import read_json, write_json, write_text
from energylm.jobs.artefacts import ArtefactStore
from energylm.records import Record, to_plain
from energylm.verbs.recipes.machine import MachineConfig, measure_machine
from energylm.verbs.recipes.plan import Plan
from energylm.verbs.recipes.plan_cost import FACTORS_FILE, plan_cost, unit_seconds

# Small networks alone do not tell products from traffic. Nothing is faster than the machine's best; and large networks
# run at 0.4 of it or better (`energylm bench shared-prefix`, drawing; the demo's energy, training).
FLOPS_BOUNDS = (1.0, 2.5)
_TITLE = re.compile(r"(?:energylm )?(?P<recipe>[^\s,]+)(?:, scale (?P<scale>\w+)(?:, (?P<corpus>[\w-]+))?:|$)")


@dataclass(frozen=True)
class MeasuredMachine(Record):
    machine: MachineConfig
    file: Path

    @classmethod
    def written(cls, file: Path) -> Self:
        machine = measure_machine()
        write_text(file, yaml.safe_dump(machine.model_dump(mode="json"), sort_keys=False))
        return cls(machine, file)

    def in_words(self) -> str:
        return f"{self.file}\n"


@dataclass(frozen=True)
class FittedFactors(Record):
    factors: dict[str, float]
    measured_on: MachineConfig
    fitted_to: list[str]  # files
    total_over_measured: float

    def in_words(self) -> str:
        return f"fitted to {len(self.fitted_to)} results: estimated over measured {self.total_over_measured:.2f}\n"


def fit_factors(
    results: Sequence[Path], machine: MachineConfig, *, store: ArtefactStore | None = None
) -> FittedFactors:
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
    best = lsq_linear(design * weight[:, None], np.array(measured) * weight, bounds=(lowest, highest)).x
    return FittedFactors(
        factors={name: round(float(value), 4) for name, value in zip(names, best, strict=True)},
        measured_on=machine,
        fitted_to=[file.name for file in results],
        total_over_measured=float((design @ best).sum() / sum(measured)),
    )


def save_factors(fitted: FittedFactors, file: Path = FACTORS_FILE) -> None:
    """Put fitted factors into the package's file; those of quantities that did not occur stay."""
    kept = read_json(file)
    write_json(file, {**kept, **to_plain(fitted), "factors": {**kept["factors"], **fitted.factors}})


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
    plan = Plan.checked({name: value for name, value in told.groupdict().items() if value} | {"fresh": True})
    steps = [step for step in plan_cost(plan, machine, store=store).steps if step.seconds is not None]
    if missing := [step.name for step in steps if step.name not in seconds]:
        raise ConfigError(f"{file} has no time of step {missing[0]!r}: it is of another version of the recipe")
    return [step.quantities for step in steps], [seconds[step.name] for step in steps]
