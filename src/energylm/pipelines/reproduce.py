"""Run a recipe: make what it needs (or find it in the artefact store), judge its claims, write its report.

    energylm reproduce deng2020/table1 --scale mini

Only the steps that the report and the claims refer to are made, and those they are made from, in order. Every step is a
pipeline that a user can call; the store decides whether it has been called before.

Relations  `recipe_steps` says what each kind of step calls; `artefacts` keeps; `evaluation.claims` judges.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from energylm.config.places import home_folder
from energylm.config.recipe import PRODUCT, VALUE, Recipe, Scale, SectionConfig, StepConfig, load_recipe, references
from energylm.errors import ConfigError
from energylm.evaluation.claims import Judged, check_predicate, claims_table, judge, paths
from energylm.evaluation.plots import LinePlot, Series
from energylm.evaluation.report import Numbers, Plot, Section, Text, write_report
from energylm.evaluation.tables import Table
from energylm.pipelines.artefacts import Artefact, ArtefactStore, artefact_key
from energylm.pipelines.recipe_steps import STEP_KINDS
from energylm.pipelines.recipe_steps.corpus import CORPUS, choose_corpus
from energylm.progress import format_seconds, say


@dataclass(frozen=True)
class PlannedStep:
    name: str
    kind: str
    key: str
    identity: dict[str, Any]  # settings, with the keys of what they refer to
    values: dict[str, Any]  # the same with paths, as the pipeline takes them
    finished: bool


@dataclass(frozen=True)
class RecipePlan:
    name: str
    scale: Scale
    corpus: str
    recipe: Recipe
    steps: list[PlannedStep]

    def describe(self) -> str:
        lines = [f"{self.name} at scale {self.scale} on {self.corpus}: {self.recipe.title} ({self.recipe.where})"]
        lines += [
            f"  {'is there' if step.finished else 'to make':8}  {step.name:24} {step.kind}/{step.key}"
            for step in self.steps
        ]
        minutes = self.recipe.scales[self.scale].minutes
        left = sum(not step.finished for step in self.steps)
        return "\n".join([*lines, f"{left} of {len(self.steps)} steps to make" + _cost(minutes)])


@dataclass(frozen=True)
class Reproduction:
    report: Path  # the page
    results: Path  # the same as JSON
    claims: list[Judged]
    steps: dict[str, Artefact]


def plan_recipe(
    name: str, *, scale: Scale, corpus: str | None = None, store: ArtefactStore | None = None
) -> RecipePlan:
    """Check the recipe and find out what is already there. Makes nothing."""
    store = store or ArtefactStore()
    recipe = load_recipe(name)
    if scale not in recipe.scales:
        raise ConfigError(f"recipe {name} has no scale {scale!r}; it has: {', '.join(recipe.scales)}")
    steps = recipe.steps_at(scale)
    chosen = ""
    if CORPUS in steps:
        chosen, settings = choose_corpus(recipe.scales[scale].corpora, wanted=corpus)
        steps[CORPUS] = steps[CORPUS].model_copy(update={"config": {**steps[CORPUS].config, **settings}})
    planned: dict[str, PlannedStep] = {}
    for step_name in _order(steps, _needed(recipe, steps)):
        planned[step_name] = _planned(step_name, steps[step_name], planned, store)
    return RecipePlan(name, scale, chosen, recipe, list(planned.values()))


def reproduce(
    name: str,
    *,
    scale: Scale,
    corpus: str | None = None,
    output: Path | None = None,
    store: ArtefactStore | None = None,
) -> Reproduction:
    """Make the recipe's report in the folder `output` (default: ENERGYLM_HOME/results/…)."""
    store = store or ArtefactStore()
    plan = plan_recipe(name, scale=scale, corpus=corpus, store=store)
    made: dict[str, Artefact] = {}
    for number, step in enumerate(plan.steps, start=1):
        head = f"{number}/{len(plan.steps)} {step.name} ({step.kind})"
        say(f"{head}: {'reused' if step.finished else 'making'} {step.kind}/{step.key}")
        kind = STEP_KINDS[step.kind]
        made[step.name] = store.make(
            step.kind, step.key, lambda folder, k=kind, v=step.values: k.run(v, folder), identity=step.identity
        )
    results = {step: artefact.result for step, artefact in made.items()}
    claims = [judge(claim.says, claim.holds_if, results, published=claim.published) for claim in plan.recipe.claims]
    folder = output or home_folder() / "results" / f"{name}-{scale}-{plan.corpus}".replace("/", "-")
    page = write_report(folder, title=_title(plan), sections=[*_sections(plan, results, claims), _steps_section(made)])
    return Reproduction(page, page.parent / "results.json", claims, made)


def _needed(recipe: Recipe, steps: Mapping[str, StepConfig]) -> set[str]:
    """The steps that report and claims refer to; a recipe that refers to no step at all is refused."""
    report = recipe.model_dump()["report"]
    named = {path.partition(".")[0] for path in references(report, VALUE)}
    for claim in recipe.claims:
        check_predicate(claim.holds_if)
        named |= {path.partition(".")[0] for path in paths(claim.holds_if)}
    if unknown := sorted(named - recipe.steps.keys()):
        raise ConfigError(
            f"recipe {recipe.title!r} refers to {unknown[0]!r}, which is no step; steps: {', '.join(steps)}"
        )
    return named & steps.keys()


def _order(steps: Mapping[str, StepConfig], wanted: set[str]) -> Iterator[str]:
    """`wanted` and everything they are made from, each after what it needs; ties in the order of the recipe."""
    graph: dict[str, list[str]] = {}
    left = sorted(wanted, key=list(steps).index)
    while left:
        name = left.pop()
        if name not in graph:
            graph[name] = list(dict.fromkeys(references(steps[name].config, PRODUCT)))
            left += graph[name]
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as circle:
        raise ConfigError(f"steps are made from each other in a circle: {' → '.join(circle.args[1])}") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=list(steps).index)
        yield from ready
        sorter.done(*ready)


def _planned(name: str, step: StepConfig, before: Mapping[str, PlannedStep], store: ArtefactStore) -> PlannedStep:
    if step.make not in STEP_KINDS:
        raise ConfigError(f"step {name!r} makes {step.make!r}, which is unknown; known: {', '.join(STEP_KINDS)}")
    kind = STEP_KINDS[step.make]
    places = {
        other.name: str(store.product(other.kind, other.key) / STEP_KINDS[other.kind].product)
        for other in before.values()
    }
    keys = {other.name: f"{other.kind}/{other.key}" for other in before.values()}
    origin = f"step {name!r}"
    values = _replaced(step.config, places)
    kind.config_class.checked(values, origin=origin)
    identity = kind.identity(_replaced(step.config, keys), origin)
    key = artefact_key(step.make, identity)
    return PlannedStep(name, step.make, key, identity, values, finished=store.find(step.make, key) is not None)


def _replaced(value: Any, products: Mapping[str, str]) -> Any:
    """`value` with every "@name" replaced."""
    if isinstance(value, str) and value.startswith(PRODUCT):
        return products[value.removeprefix(PRODUCT)]
    if isinstance(value, Mapping):
        return {key: _replaced(inner, products) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, products) for inner in value]
    return value


def _title(plan: RecipePlan) -> str:
    return f"{plan.name}, scale {plan.scale}, {plan.corpus}: {plan.recipe.title}"


def _sections(plan: RecipePlan, results: Mapping[str, Any], claims: Sequence[Judged]) -> list[Section]:
    command = f"energylm reproduce {plan.name} --scale {plan.scale} --corpus {plan.corpus}"
    about = f"{plan.recipe.about.strip()}\n\nMade by: {command}"
    shown = [section for config in plan.recipe.report if (section := _section(config, results)) is not None]
    return [Text("What this is", about), Numbers("Claims", claims_table(claims)), *shown]


def _section(config: SectionConfig, results: Mapping[str, Any]) -> Section | None:
    """None where the section is about steps that this scale does not make."""
    convention = str(_value(config.convention, results) or "")
    if config.series:
        lines = [
            Series(line.name, _value(line.x, results), _value(line.y, results))
            for line in config.series
            if _value(line.x, results) is not None
        ]
        plot = LinePlot(lines, x_label=config.x_label, y_label=config.y_label, log_x=config.log_x)
        return Plot(config.title, plot, alt=config.alt or config.title) if lines else None
    if config.records is not None:
        records = _value(config.records, results)
        rows = None if records is None else [[record[column] for column in config.columns] for record in records]
    else:
        rows = [[_value(cell, results) for cell in row] for row in config.rows if _is_made(row, results)]
    return Numbers(config.title, Table(config.columns, rows, convention=convention)) if rows else None


def _is_made(row: Sequence[Any], results: Mapping[str, Any]) -> bool:
    """Whether every step that a row refers to was made at this scale."""
    return all(path.partition(".")[0] in results for path in references(list(row), VALUE))


def _value(cell: Any, results: Mapping[str, Any]) -> Any:
    """A cell as it is, or what "=path" leads to; None for a step that this scale does not make."""
    if not isinstance(cell, str) or not cell.startswith(VALUE):
        return cell
    value: Any = results
    for place, part in enumerate(path := cell.removeprefix(VALUE).split(".")):
        if place == 0 and part not in value:
            return None
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"the report refers to {cell}, but {'.'.join(path[:place])} has no {part!r}")
        value = value[part]
    return value


def _steps_section(made: Mapping[str, Artefact]) -> Section:
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


def _cost(minutes: float | None) -> str:
    return f"; all of them take about {minutes:g} minutes on 2 CPU cores" if minutes else ""
