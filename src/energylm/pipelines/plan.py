"""What a recipe or the demo will cost, before it is run: `energylm plan`.

    seconds of a step  =  Σ quantity · unit time of the machine · measured factor

Quantities are counted (`plan_steps`), unit times come from a machine file or are measured in a second or two
(`plan_machine`), and factors say how much slower a kind of work is than the machine's best: `plan_factors.json`, fitted
to kept results whose steps were timed (`plan_fit`). Steps whose artefacts are there cost nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from energylm.config.demo import ENCODER, DemoConfig
from energylm.config.plan import MachineConfig, PlanConfig
from energylm.files import read_json
from energylm.jobs.artefacts import ArtefactStore
from energylm.jobs.costs import CorpusSize, Counted, Product, Surroundings
from energylm.pipelines.plan_steps import count_step
from energylm.progress import format_seconds
from energylm.tables import Table

DEMO = "demo"
FACTORS_FILE = Path(str(files("energylm"))) / "pipelines" / "plan_factors.json"
_GIGA = 1e9


@dataclass(frozen=True)
class StepCost:
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
class Plan:
    title: str
    machine: MachineConfig
    world: int
    steps: list[StepCost]

    @property
    def left(self) -> list[StepCost]:
        return [step for step in self.steps if not step.is_there]

    @property
    def uncounted(self) -> list[StepCost]:
        return [step for step in self.left if step.seconds is None]

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
        rows = [
            [
                step.name,
                step.kind,
                "is there"
                if step.is_there
                else "not counted"
                if step.seconds is None
                else format_seconds(step.seconds),
                None if step.flops is None else step.flops / 1e12,
                None if step.memory_bytes is None else step.memory_bytes / _GIGA,
                None if step.disk_bytes is None else step.disk_bytes / _GIGA,
                "; ".join(step.notes),
            ]
            for step in self.steps
        ]
        return Table(
            ["step", "kind", "time", "TFLOP", "memory GB", "disk GB", "note"], rows, convention=self.convention
        )

    @property
    def convention(self) -> str:
        machine = self.machine
        return (
            f"on {machine.name}: {machine.matmul_gflops:,.0f} GFLOP/s of matrix products, "
            f"{machine.memory_gigabytes_per_second:,.0f} GB/s of memory, {self.world} "
            f"process{'es' if self.world > 1 else ''}; FLOPs of matrix products in all; memory of each process"
        )

    def summary(self) -> list[str]:
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

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "machine": self.machine.model_dump(mode="json"),
            "processes": self.world,
            "seconds": self.seconds,
            "flops": self.flops,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "not_counted": [step.name for step in self.uncounted],
            "steps": [asdict(step) for step in self.steps],
        }


def plan_cost(config: PlanConfig, machine: MachineConfig, *, store: ArtefactStore | None = None) -> Plan:
    """The cost of a recipe or of the demo on `machine`. Reads sizes, makes nothing."""
    facts = read_json(FACTORS_FILE)
    store = store or ArtefactStore()
    if config.name == DEMO:
        title, steps = "the demo", _demo_steps(DemoConfig())
    else:
        title, steps = _recipe_steps(config, store)
    products: dict[str, Product] = {}
    around = Surroundings(config, products, facts)
    costs = []
    for step in steps:
        counted = count_step(step.kind, step.values, around)
        if counted is not None:
            products[step.product] = _known(step, counted)
        costs.append(_cost(step, counted, machine, facts["factors"], config))
    return Plan(title, machine, config.world, costs)


@dataclass(frozen=True)
class _Step:
    name: str
    kind: str
    values: Mapping[str, Any]
    product: str  # where it lies or will lie
    result: Mapping[str, Any] | None = None  # of a finished step


def _recipe_steps(config: PlanConfig, store: ArtefactStore) -> tuple[str, list[_Step]]:
    from energylm.pipelines.recipe_steps import STEP_KINDS
    from energylm.pipelines.reproduce import plan_recipe

    plan = plan_recipe(config.name, scale=config.scale, corpus=config.corpus, store=store)
    steps = []
    for step in plan.steps:
        found = store.find(step.kind, step.key)
        place = str(store.product(step.kind, step.key) / STEP_KINDS[step.kind].product)
        steps.append(_Step(step.name, step.kind, step.values, place, None if found is None else found.result))
    on = f" on {plan.corpus}" if plan.corpus else ""
    return f"{plan.name} at scale {plan.scale}{on}", steps


def _demo_steps(config: DemoConfig) -> list[_Step]:
    """The demo's five steps with the settings that it gives them; its samples are part of the last."""
    from energylm.pipelines.demo import energy_config, negatives_config, perplexity_verb, train_config

    if config.energy.init is None:
        config = config.model_copy(update={"energy": config.energy.model_copy(update={"init": ENCODER})})
    corpus, negatives = Path("corpus"), Path("negatives")
    lm, energy = Path("lm/model"), Path("energy/model")
    values = {"sources": [config.source], "vocabulary_size": config.vocabulary_size}
    return [
        _Step("corpus", "corpus", values, str(corpus)),
        _Step("language model", "lm", train_config(config, corpus_folder=corpus).model_dump(), str(lm)),
        _Step("negatives", "negatives", negatives_config(config, corpus, lm).model_dump(), str(negatives)),
        _Step("energy", "energy", energy_config(config, corpus, negatives).model_dump(), str(energy)),
        _Step("perplexity", "perplexity", perplexity_verb(config, corpus, lm, energy).model_dump(), "perplexity"),
    ]


def _known(step: _Step, counted: Counted) -> Product:
    """What a finished step found out is better than what was counted for it."""
    if step.result is not None and isinstance(counted.product, CorpusSize):
        return CorpusSize(step.result["tokens"], step.result["vocabulary_size"])
    return counted.product


def _cost(
    step: _Step, counted: Counted | None, machine: MachineConfig, factors: Mapping[str, float], config: PlanConfig
) -> StepCost:
    is_there = step.result is not None and not config.fresh
    if counted is None:
        return StepCost(step.name, step.kind, is_there, None, None, None, None)
    if is_there:
        return StepCost(step.name, step.kind, True, 0.0, 0.0, 0.0, 0.0)
    return StepCost(
        step.name,
        step.kind,
        False,
        seconds_of(counted.quantities, machine, factors),
        counted.flops * config.world,
        counted.memory_bytes,
        counted.disk_bytes,
        tuple(counted.notes),
        counted.quantities,
    )


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
