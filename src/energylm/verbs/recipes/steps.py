"""Steps in order: planned, found in the artefact store or made. What recipes and grids have in common.

A step names what it is made from ("@corpus"). Wanted steps, and those they are made from, are made one after the other,
each under a key that is a hash of its settings and of the keys it is made from (`artefacts`).

Relations  `step_kind` says what each kind of step runs; `recipe_plan` and `grid_steps` decide which steps there are.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from energylm.errors import ConfigError
from energylm.jobs.artefacts import Artefact, ArtefactStore, artefact_key
from energylm.progress import format_seconds, say
from energylm.report.report import Numbers, Section
from energylm.tables import Table
from energylm.verbs.recipes.recipe import PRODUCT, StepConfig, references
from energylm.verbs.recipes.step_kind import step_kind, step_kinds


@dataclass(frozen=True)
class PlannedStep:
    name: str
    kind: str
    key: str
    identity: dict[str, Any]  # settings, with the keys of what they refer to
    values: dict[str, Any]  # the same with paths, as the verb takes them
    product: str  # what "@name" means: where it lies or will lie
    finished: bool


def plan_steps(steps: Mapping[str, StepConfig], wanted: Iterable[str], *, store: ArtefactStore) -> list[PlannedStep]:
    """`wanted` steps and everything they are made from, in order, each with its key. Makes nothing."""
    planned: dict[str, PlannedStep] = {}
    for name in _order(steps, set(wanted)):
        planned[name] = _planned(name, steps[name], planned, store)
    return list(planned.values())


def make_steps(planned: Sequence[PlannedStep], *, store: ArtefactStore) -> dict[str, Artefact]:
    """Every step's artefact; what is there already is not made again."""
    made: dict[str, Artefact] = {}
    for number, step in enumerate(planned, start=1):
        head = f"{number}/{len(planned)} {step.name} ({step.kind})"
        say(f"{head}: {'reused' if step.finished else 'making'} {step.kind}/{step.key}")
        make = partial(step_kind(step.kind).make, step.values)
        made[step.name] = store.make(step.kind, step.key, make, identity=step.identity)
    return made


def describe_steps(planned: Sequence[PlannedStep]) -> list[str]:
    """One line a step: whether it is there, its name, and what the store calls it."""
    width = max([24, *(len(step.name) for step in planned)])
    return [
        f"  {'is there' if step.finished else 'to make':8}  {step.name:{width}} {step.kind}/{step.key}"
        for step in planned
    ]


def steps_section(made: Mapping[str, Artefact]) -> Section:
    """What was made, what was reused, and how long each step took when it was made."""
    rows = [
        [name, artefact.kind, artefact.key, "reused" if artefact.reused else "made", artefact.seconds]
        for name, artefact in made.items()
    ]
    total = format_seconds(sum(artefact.seconds for artefact in made.values()))
    spent = format_seconds(sum(artefact.seconds for artefact in made.values() if not artefact.reused))
    return Numbers(
        "Steps",
        Table(
            ["step", "kind", "key", "this time", "seconds when made"],
            rows,
            convention=f"all steps together took {total}, {spent} of it in this run; keys name artefacts in the store",
        ),
    )


def _order(steps: Mapping[str, StepConfig], wanted: set[str]) -> Iterator[str]:
    """`wanted` and everything they are made from, each after what it needs; ties in the order of `steps`."""
    order = {name: number for number, name in enumerate(steps)}
    graph: dict[str, list[str]] = {}
    left = sorted(wanted, key=order.__getitem__)
    while left:
        name = left.pop()
        if name not in graph:
            graph[name] = list(dict.fromkeys(references(steps[name].config, PRODUCT)))
            _refuse_unknown(name, graph[name], steps)
            left += graph[name]
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as circle:
        raise ConfigError(f"steps are made from each other in a circle: {' → '.join(circle.args[1])}") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.__getitem__)
        yield from ready
        sorter.done(*ready)


def _refuse_unknown(name: str, products: Sequence[str], steps: Mapping[str, StepConfig]) -> None:
    for product in products:
        if product not in steps:
            near = difflib.get_close_matches(product, steps, n=1, cutoff=0.5)
            cure = f"did you mean @{near[0]}?" if near else f"steps: {', '.join(steps)}"
            raise ConfigError(f"step {name!r} needs @{product}, which is no step; {cure}")


def _planned(name: str, step: StepConfig, before: Mapping[str, PlannedStep], store: ArtefactStore) -> PlannedStep:
    if step.make not in step_kinds():
        raise ConfigError(f"step {name!r} makes {step.make!r}, which is unknown; known: {', '.join(step_kinds())}")
    kind, origin = step_kind(step.make), f"step {name!r}"
    values = with_products(step.config, {other.name: other.product for other in before.values()})
    keys = {other.name: f"{other.kind}/{other.key}" for other in before.values()}
    identity = kind.identity(with_products(step.config, keys), origin=origin)
    key = artefact_key(step.make, identity)
    product = str(store.product(step.make, key) / kind.product)
    return PlannedStep(name, step.make, key, identity, values, product, store.find(step.make, key) is not None)


def with_products(value: Any, products: Mapping[str, str]) -> Any:
    """`value` with every "@name" replaced."""
    if isinstance(value, str) and value.startswith(PRODUCT):
        return products[value.removeprefix(PRODUCT)]
    if isinstance(value, Mapping):
        return {key: with_products(inner, products) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_products(inner, products) for inner in value]
    return value
