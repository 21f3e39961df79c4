"""What a recipe or the demo will cost, before it is run.

    seconds of a step  =  Σ quantity · unit time of the machine · measured factor

Quantities are counted by each verb (`Verb.cost`), unit times come from a machine file or are measured in a second or
two (`plan`), and factors say how much slower a kind of work is than the machine's best: `plan_factors.json`, fitted to
kept results whose steps were timed on the machine whose rates are given (`energylm plan --fit RESULTS`). Steps whose
artefacts are there cost nothing. Verbs without counted work (minimal pairs) are named and left out of the sum.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import yaml

from energylm.config.vocabulary import ENCODER
from energylm.errors import ConfigError, DataError, extra
from energylm.files import read_json, write_json, write_text
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.costs import CorpusSize, Counted, Product, Surroundings
from energylm.progress import format_seconds
from energylm.records import Record, to_plain
from energylm.tables import Cell, Table, to_markdown
from energylm.verbs.recipes.demo import TinyDemo
from energylm.verbs.recipes.plan import DEMO, MachineConfig, Plan, measure_machine
from energylm.verbs.recipes.recipe import with_products
from energylm.verbs.recipes.reproducing import plan_recipe
from energylm.verbs.recipes.steps import PlannedStep, step_verb

FACTORS_FILE = Path(str(files("energylm"))) / "verbs" / "recipes" / "plan_factors.json"
_GIGA = 1e9
# Small networks alone do not tell products from traffic. Nothing is faster than the machine's best; and large networks
# run at 0.4 of it or better (`energylm bench shared-prefix`, drawing; the demo's energy, training).
FLOPS_BOUNDS = (1.0, 2.5)
_TITLE = re.compile(
    r"(?:energylm )?(?P<recipe>[^\s,]+)"
    r"(?:, scale (?P<scale>\w+)(?:, (?P<corpus>[\w-]+))?(?:, (?P<seeds>\d+) seeds)?:|$)"
)


@dataclass(frozen=True)
class CountedStep:
    """What one step takes; None where its kind of work is not counted. A step that is there takes nothing."""

    name: str
    kind: str
    is_there: bool
    seconds: float | None
    flops: float | None
    memory_bytes: float | None
    disk_bytes: float | None
    notes: tuple[str, ...] = ()
    quantities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanResult(Record):
    title: str
    machine: MachineConfig
    processes: int  # in all
    steps: list[CountedStep]

    computed = ("seconds", "flops", "memory_bytes", "disk_bytes", "not_counted")

    @property
    def left(self) -> list[CountedStep]:
        return [step for step in self.steps if not step.is_there]

    @property
    def uncounted(self) -> list[CountedStep]:
        return [step for step in self.left if step.seconds is None]

    @property
    def not_counted(self) -> list[str]:
        return [step.name for step in self.uncounted]

    @property
    def seconds(self) -> float:
        return sum(step.seconds or 0.0 for step in self.left)

    @property
    def flops(self) -> float:
        return sum(step.flops or 0.0 for step in self.left)

    @property
    def memory_bytes(self) -> float:
        """Of the largest step, in each process."""
        return max((step.memory_bytes or 0.0 for step in self.left), default=0.0)

    @property
    def disk_bytes(self) -> float:
        return sum(step.disk_bytes or 0.0 for step in self.left)

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = []
        for step in self.steps:
            time = (
                "is there" if step.is_there else "not counted" if step.seconds is None else format_seconds(step.seconds)
            )
            amounts = ((step.flops, 1e12), (step.memory_bytes, _GIGA), (step.disk_bytes, _GIGA))
            shown = [None if amount is None else amount / unit for amount, unit in amounts]
            rows.append([step.name, step.kind, time, *shown, "; ".join(step.notes)])
        return Table(["step", "kind", "time", "TFLOP", "memory GB", "disk GB", "note"], rows, self.convention)

    @property
    def convention(self) -> str:
        machine = self.machine
        return (
            f"on {machine.name}: {machine.matmul_gflops:,.0f} GFLOP/s of matrix products, "
            f"{machine.memory_gigabytes_per_second:,.0f} GB/s of memory, {self.processes} "
            f"process{'es' if self.processes > 1 else ''}; FLOPs of matrix products in all; memory of each process"
        )

    def in_words(self) -> str:
        """The table and the sums below it."""
        return "\n".join([self.title, "", to_markdown(self.table), *self.sums(), ""])

    def sums(self) -> list[str]:
        lines = [
            f"{self.title}: {format_seconds(self.seconds)}, {self.flops / 1e12:,.3g} TFLOP, "
            f"{self.memory_bytes / _GIGA:,.2g} GB of memory, {self.disk_bytes / _GIGA:,.2g} GB of disk for "
            f"{len(self.left)} of {len(self.steps)} steps"
        ]
        if self.uncounted:
            kinds = ", ".join(dict.fromkeys(step.kind for step in self.uncounted))
            lines.append(f"not counted, so it will take longer: {len(self.uncounted)} steps ({kinds})")
        machine = self.machine
        if machine.memory_gigabytes is not None and self.memory_bytes > machine.memory_gigabytes * _GIGA:
            lines.append(f"this does not fit into the {machine.memory_gigabytes:,.0f} GB of memory; set a micro_batch")
        if machine.disk_gigabytes is not None and self.disk_bytes > machine.disk_gigabytes * _GIGA:
            lines.append(f"this does not fit onto the {machine.disk_gigabytes:,.0f} GB of disk that are free")
        return lines


def plan_cost(plan: Plan, machine: MachineConfig, *, store: ArtefactStore | None = None) -> PlanResult:
    """The cost of a recipe or of the demo on `machine`. Reads sizes, makes nothing."""
    facts = read_json(FACTORS_FILE)
    title, steps = _demo_steps() if plan.recipe == DEMO else _recipe_steps(plan, store or ArtefactStore())
    products: dict[str, Product] = {}
    around = Surroundings(products, facts, plan.world, plan.text_gigabytes)
    costs = []
    for step, result in steps:
        counted = step.verb.cost(around)
        if counted is not None:
            counted.count(f"start.{step.kind}", 1)
            products[step.product] = _known(result, counted)
        is_there = result is not None and not plan.fresh
        costs.append(_cost(step, counted, machine, facts["factors"], is_there=is_there, world=plan.world))
    return PlanResult(title, machine, plan.world, costs)


Made = Mapping[str, Any] | None  # the result of a step that is there


def _recipe_steps(plan: Plan, store: ArtefactStore) -> tuple[str, list[tuple[PlannedStep, Made]]]:
    assert plan.recipe is not None
    planned = plan_recipe(plan.recipe, scale=plan.scale, corpus=plan.corpus, seeds=plan.seeds, store=store)
    artefacts = [store.find(step.kind, step.key) for step in planned.steps]
    results = [None if artefact is None else artefact.result for artefact in artefacts]
    return planned.title, list(zip(planned.steps, results, strict=True))


def _demo_steps() -> tuple[str, list[tuple[PlannedStep, Made]]]:
    """The demo's steps from scratch; its samples are part of the last."""
    steps: list[tuple[PlannedStep, Made]] = []
    products: dict[str, str] = {}
    for name, step in TinyDemo().made_by(init=ENCODER, seed=0).items():
        verb = step_verb(step.make, with_products(step.config, products))
        products[name] = str(Path(name) / verb.product)
        steps.append((PlannedStep(name, step.make, "", {}, verb, products[name], finished=False), None))
    return "the demo from scratch", steps


def _known(result: Made, counted: Counted) -> Product:
    """What a finished step measured is better than what was counted for it."""
    if result is not None and isinstance(counted.product, CorpusSize):
        tokens = {split: result["splits"][split]["tokens"] for split in counted.product.tokens}
        return CorpusSize(tokens, result["tokenizer"]["vocabulary_size"])
    return counted.product


def _cost(
    step: PlannedStep,
    counted: Counted | None,
    machine: MachineConfig,
    factors: Mapping[str, float],
    *,
    is_there: bool,
    world: int,
) -> CountedStep:
    if counted is None or is_there:
        nothing = None if counted is None else 0.0
        return CountedStep(step.name, step.kind, is_there, nothing, nothing, nothing, nothing)
    seconds, flops = seconds_of(counted.quantities, machine, factors), counted.flops * world
    amounts = (seconds, flops, counted.memory_bytes, counted.disk_bytes)
    return CountedStep(step.name, step.kind, False, *amounts, tuple(counted.notes), counted.quantities)


def seconds_of(quantities: Mapping[str, float], machine: MachineConfig, factors: Mapping[str, float]) -> float:
    return sum(amount * unit_seconds(name, machine) * factors.get(name, 1.0) for name, amount in quantities.items())


def unit_seconds(name: str, machine: MachineConfig) -> float:
    """What one of a quantity takes at the machine's best; for counts without a rate of their own, a second."""
    if name == "network.bytes":
        return 1 / (machine.network_gigabytes_per_second * _GIGA)
    if name.startswith("text."):
        return 1 / (machine.text_megabytes_per_second * 1e6)
    return {
        "flops": 1 / (machine.matmul_gflops * _GIGA),
        "bytes": 1 / (machine.memory_gigabytes_per_second * _GIGA),
        "operations": machine.operation_microseconds / 1e6,
    }.get(name.rpartition(".")[2], 1.0)


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

    with extra("train"):
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
    told_of = {"seeds": 1} | {name: value for name, value in told.groupdict().items() if value}
    plan = Plan.checked({**told_of, "fresh": True})
    steps = [step for step in plan_cost(plan, machine, store=store).steps if step.seconds is not None]
    if missing := [step.name for step in steps if step.name not in seconds]:
        raise ConfigError(f"{file} has no time of step {missing[0]!r}: it is of another version of the recipe")
    return [step.quantities for step in steps], [seconds[step.name] for step in steps]
