"""Run a recipe: make what it needs (or find it in the artefact store), judge its claims, write its report.

    energylm reproduce deng2020/table1 --scale mini

Only the steps that the report and the claims refer to are made, and those they are made from, in order. Every step is a
pipeline that a user can call; the store decides whether it has been called before.

Relations  `steps` plans and makes them; `grid_steps` takes a grid apart; `evaluation.claims` judges.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.config.grid import GridConfig
from energylm.config.places import home_folder
from energylm.config.recipe import (
    PRODUCT,
    VALUE,
    Recipe,
    Scale,
    SectionConfig,
    StepConfig,
    first_made,
    load_recipe,
    members_of,
    references,
)
from energylm.errors import ConfigError
from energylm.evaluation.claims import Judged, check_predicate, claims_table, judge, look_up, paths
from energylm.evaluation.grid_report import grid_sections
from energylm.files import interrupts_say_it_is_kept
from energylm.jobs.artefacts import Artefact, ArtefactStore
from energylm.pipelines.grid_steps import GRID, expand_grid
from energylm.pipelines.recipe_steps.corpus import CORPUS, choose_corpus, corpus_steps
from energylm.pipelines.steps import PlannedStep, describe_steps, make_steps, plan_steps, steps_section
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Table


@dataclass(frozen=True)
class RecipePlan:
    name: str
    scale: Scale
    corpus: str
    recipe: Recipe
    steps: list[PlannedStep]

    def describe(self) -> str:
        on = f" on {self.corpus}" if self.corpus else ""
        lines = [f"{self.name} at scale {self.scale}{on}: {self.recipe.title} ({self.recipe.where})"]
        lines += describe_steps(self.steps)
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
    chosen, steps = "", recipe.steps_at(scale)
    if CORPUS in steps:
        chosen, _ = choose_corpus(recipe.scales[scale].corpora, wanted=corpus)
        steps = steps_on(recipe, scale, chosen)
        _refuse_lost(recipe, scale)
    known = recipe.steps.keys() | {
        name
        for any_scale, one in recipe.scales.items()
        for other in one.corpora
        for name in steps_on(recipe, any_scale, other)
    }
    return RecipePlan(name, scale, chosen, recipe, plan_steps(steps, _needed(recipe, steps, known), store=store))


def steps_on(recipe: Recipe, scale: Scale, corpus: str) -> dict[str, StepConfig]:
    """The steps of a recipe on one of its corpora or sets of corpora: grids as the steps they are made of, and without
    those that are made from corpora of another set."""
    steps, alternatives = recipe.steps_at(scale), recipe.scales[scale].corpora
    if CORPUS not in steps:
        return steps
    corpora = corpus_steps(steps[CORPUS].config, alternatives[corpus])
    every_name = {name for other in alternatives.values() for name in members_of(other) or (CORPUS,)}
    members = {name: step for name, step in corpora.items() if name != CORPUS or len(corpora) == 1}
    found = dict(corpora)
    for name, step in steps.items():
        if step.make == GRID:
            found |= expand_grid(name, _grid_config(step, name, members, every_name), corpora=members)
        elif name != CORPUS:
            found[name] = step
    found = {name: step.model_copy(update={"config": first_made(step.config, found)}) for name, step in found.items()}
    while absent := [name for name, step in found.items() if not set(references(step.config, PRODUCT)) <= found.keys()]:
        for name in absent:
            del found[name]
    return found


def _refuse_lost(recipe: Recipe, scale: Scale) -> None:
    """Steps that are made from others which no choice of corpora makes: misspelt."""
    alternatives = [steps_on(recipe, scale, corpus) for corpus in recipe.scales[scale].corpora]
    for name, step in recipe.steps_at(scale).items():
        if not any(name in steps for steps in alternatives):
            needs = ", ".join(f"{PRODUCT}{product}" for product in references(step.config, PRODUCT))
            raise ConfigError(f"step {name!r} needs {needs}, of which some no corpus of scale {scale} makes")


def _grid_config(step: StepConfig, name: str, members: Mapping[str, StepConfig], known: set[str]) -> GridConfig:
    """The grid on the corpora that were chosen; what it says of corpora of other sets falls away."""
    values = {**step.config, "corpora": dict.fromkeys(sorted(known), "")}
    return GridConfig.checked(values, origin=f"step {name!r}").on(list(members))


@interrupts_say_it_is_kept()
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
    made = make_steps(plan.steps, store=store)
    results = {step: artefact.result for step, artefact in made.items()}
    claims = [judge(claim.says, claim.holds_if, results, published=claim.published) for claim in plan.recipe.claims]
    folder = output or home_folder() / "results" / "-".join(filter(None, [*name.split("/"), scale, plan.corpus]))
    page = write_report(folder, title=_title(plan), sections=[*_sections(plan, results, claims), steps_section(made)])
    return Reproduction(page, page.parent / "results.json", claims, made)


def _needed(recipe: Recipe, steps: Mapping[str, StepConfig], known: Collection[str]) -> set[str]:
    """The steps that report and claims refer to; a name that is a step at no scale and on no corpus is refused."""
    report = recipe.model_dump()["report"]
    named = {path.partition(".")[0] for path in references(report, VALUE)}
    for claim in recipe.claims:
        check_predicate(claim.holds_if)
        named |= {path.partition(".")[0] for path in paths(claim.holds_if)}
    if unknown := sorted(named - set(known)):
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"steps: {', '.join(steps)}"
        raise ConfigError(f"recipe {recipe.title!r} refers to {unknown[0]!r}, which is no step; {cure}")
    return named & steps.keys()


def _title(plan: RecipePlan) -> str:
    on = f", {plan.corpus}" if plan.corpus else ""
    return f"{plan.name}, scale {plan.scale}{on}: {plan.recipe.title}"


def _sections(plan: RecipePlan, results: Mapping[str, Any], claims: Sequence[Judged]) -> list[Section]:
    on = f" --corpus {plan.corpus}" if plan.corpus else ""
    command = f"energylm reproduce {plan.name} --scale {plan.scale}{on}"
    about = f"{plan.recipe.about.strip()}\n\nMade by: {command}"
    shown = [section for config in plan.recipe.report for section in _section(config, results)]
    return [Text("What this is", about), Numbers("Claims", claims_table(claims)), *shown]


def _section(config: SectionConfig, results: Mapping[str, Any]) -> list[Section]:
    """Nothing where the section is about steps that this scale does not make; several parts for a grid."""
    convention = str(_value(config.convention, results) or "")
    if config.grid is not None:
        found = _value(config.grid, results)
        return [] if found is None else grid_sections(found, title=config.title)
    if config.series:
        lines = [
            Series(line.name, _points(line.x, results), _points(line.y, results))
            for line in config.series
            if _value(line.x, results) is not None
        ]
        plot = LinePlot(lines, x_label=config.x_label, y_label=config.y_label, log_x=config.log_x)
        return [Plot(config.title, plot, alt=config.alt or config.title)] if lines else []
    if config.records is not None:
        records = _value(config.records, results)
        rows = None if records is None else [[record[column] for column in config.columns] for record in records]
    else:
        rows = [[_value(cell, results) for cell in row] for row in config.rows if _is_made(row, results)]
    return [Numbers(config.title, Table(config.columns, rows, convention=convention))] if rows else []


def _is_made(row: Sequence[Any], results: Mapping[str, Any]) -> bool:
    """Whether some step that a row refers to was made at this scale; cells of others stay empty."""
    named = [path.partition(".")[0] for path in references(list(row), VALUE)]
    return not named or any(name in results for name in named)


def _points(path: str, results: Mapping[str, Any]) -> list[float]:
    """Of a line; a single number is a line of one point."""
    value = _value(path, results)
    return value if isinstance(value, list) else [value]


def _value(cell: Any, results: Mapping[str, Any]) -> Any:
    """A cell as it is, or what "=path" leads to; None for a step that this scale does not make."""
    if not isinstance(cell, str) or not cell.startswith(VALUE):
        return cell
    path = cell.removeprefix(VALUE)
    if path.partition(".")[0] not in results:
        return None
    try:
        return look_up(results, path)
    except LookupError as missing:
        above, _, part = missing.args[0].rpartition(".")
        raise ConfigError(f"the report refers to {cell}, but {above} has no {part!r}") from None


def _cost(minutes: float | None) -> str:
    return f"; all of them take about {minutes:g} minutes on 2 CPU cores" if minutes else ""
