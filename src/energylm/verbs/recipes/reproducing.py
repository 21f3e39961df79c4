"""Run a recipe: plan what it needs, make it (or find it in the artefact store), judge its claims, write its report.

Only the steps that the report and the claims refer to are made, and those they are made from, in order, on the corpora
that are here. Every step is a verb that a user can call; the store decides whether it has been called before. Grids
are taken apart into the steps they are made of, and what is said of corpora that were not chosen falls away.

Relations  `recipe` is the file; `steps` gives each step its key and makes it; `claims` judges; `reproduce` is the verb;
           `plan_cost` counts the same steps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from energylm.config.environment import home_folder
from energylm.errors import ConfigError
from energylm.files import interrupts_say_it_is_kept, read_json
from energylm.jobs.artefacts import Artefact, ArtefactStore
from energylm.records import Record
from energylm.report.grid_report import grid_sections
from energylm.report.plots import LinePlot, Series
from energylm.report.report import Numbers, Plot, Section, Text, write_report
from energylm.tables import Table
from energylm.verbs.recipes.claims import JudgedClaim, claims_table, gated, judge, look_up, mean_of_runs, paths
from energylm.verbs.recipes.grid import Grid
from energylm.verbs.recipes.grid_steps import expand_grid
from energylm.verbs.recipes.recipe import (
    CORPUS,
    GRID,
    PRODUCT,
    VALUE,
    Recipe,
    Scale,
    SectionConfig,
    StepConfig,
    choose_corpus,
    corpus_steps,
    did_you_mean,
    first_made,
    load_recipe,
    members_of,
    references,
)
from energylm.verbs.recipes.steps import PlannedStep, describe_steps, make_steps, plan_steps, reseeded, steps_section

RUN = "~"  # between the name of a step and the number of its run, from the second on


@dataclass(frozen=True)
class RecipePlan:
    name: str
    scale: Scale
    corpus: str
    recipe: Recipe
    steps: list[PlannedStep]
    seeds: int = 1

    @property
    def title(self) -> str:
        on = f" on {self.corpus}" if self.corpus else ""
        return f"{self.name} at scale {self.scale}{on}{self.runs}"

    @property
    def runs(self) -> str:
        return f", {self.seeds} seeds" if self.seeds > 1 else ""

    def describe(self) -> str:
        lines = [f"{self.title}: {self.recipe.title} ({self.recipe.where})", *describe_steps(self.steps)]
        minutes = self.recipe.scales[self.scale].minutes
        cost = f"; all of them take about {minutes:g} minutes on 2 CPU cores" if minutes else ""
        left = sum(not step.finished for step in self.steps)
        return "\n".join([*lines, f"{left} of {len(self.steps)} steps to make{cost}"])


def plan_recipe(
    name: str, *, scale: Scale, corpus: str | None = None, seeds: int | None = None, store: ArtefactStore | None = None
) -> RecipePlan:
    """Check the recipe and find out what is already there. Makes nothing. With several seeds (none: as many as the
    scale says) the steps of further runs follow, called `step~2`, `step~3` …; what does not depend on a seed is one
    step for all runs."""
    store = store or ArtefactStore()
    recipe = load_recipe(name)
    if scale not in recipe.scales:
        raise ConfigError(f"recipe {name} has no scale {scale!r}; it has: {', '.join(recipe.scales)}")
    seeds = seeds or recipe.scales[scale].seeds
    chosen, steps = "", recipe.steps_at(scale)
    if CORPUS in steps:
        chosen = choose_corpus(recipe.scales[scale].corpora, wanted=corpus)
        steps = steps_on(recipe, scale, chosen)
        _refuse_lost(recipe, scale)
    known = recipe.steps.keys() | {
        name
        for any_scale, settings in recipe.scales.items()
        for other in settings.corpora
        for name in steps_on(recipe, any_scale, other)
    }
    needed = _needed(recipe, steps, known)
    planned = [
        plan_steps({name: reseeded(name, step, run) for name, step in steps.items()}, needed, store=store)
        for run in range(seeds)
    ]
    without_seed = {step.key for step in planned[0]}
    again = [
        replace(step, name=f"{step.name}{RUN}{run}")
        for run, run_steps in enumerate(planned[1:], start=2)
        for step in run_steps
        if step.key not in without_seed
    ]
    return RecipePlan(name, scale, chosen, recipe, [*planned[0], *again], seeds)


def steps_on(recipe: Recipe, scale: Scale, corpus: str) -> dict[str, StepConfig]:
    """The steps of a recipe on one of its corpora or sets of corpora: grids as the steps they are made of, and without
    those that are made from corpora of another set."""
    steps, alternatives = recipe.steps_at(scale), recipe.scales[scale].corpora
    if CORPUS not in steps:
        return steps
    corpora = corpus_steps(steps[CORPUS].config, alternatives[corpus])
    every_name = {name for other in alternatives.values() for name in members_of(other) or (CORPUS,)}
    members = {name: step for name, step in corpora.items() if name != CORPUS or len(corpora) == 1}
    result = dict(corpora)
    for name, step in steps.items():
        if step.make == GRID:
            result |= expand_grid(name, _grid_config(step, name, members, every_name), corpora=members)
        elif name != CORPUS:
            result[name] = step
    result = {
        name: step.model_copy(update={"config": first_made(step.config, result)}) for name, step in result.items()
    }
    while absent := [n for n, step in result.items() if not set(references(step.config, PRODUCT)) <= result.keys()]:
        for name in absent:
            del result[name]
    return result


def _refuse_lost(recipe: Recipe, scale: Scale) -> None:
    """Steps that are made from others which no choice of corpora makes: misspelt."""
    alternatives = [steps_on(recipe, scale, corpus) for corpus in recipe.scales[scale].corpora]
    for name, step in recipe.steps_at(scale).items():
        if not any(name in steps for steps in alternatives):
            needs = ", ".join(f"{PRODUCT}{product}" for product in references(step.config, PRODUCT))
            raise ConfigError(f"step {name!r} needs {needs}, of which some no corpus of scale {scale} makes")


def _grid_config(step: StepConfig, name: str, members: Mapping[str, StepConfig], known: set[str]) -> Grid:
    """The grid on the corpora that were chosen; what it says of corpora of other sets falls away."""
    values = {**step.config, "corpora": dict.fromkeys(sorted(known), "")}
    return Grid.checked(values, origin=f"step {name!r}").on(list(members))


def _needed(recipe: Recipe, steps: Mapping[str, StepConfig], known: Collection[str]) -> set[str]:
    """The steps that report and claims refer to; a name that is a step at no scale and on no corpus is refused."""
    claimed = [path for claim in recipe.claims for path in paths(claim.holds_if)]
    named = {path.partition(".")[0] for path in (*references(recipe.model_dump()["report"], VALUE), *claimed)}
    if unknown := sorted(named - set(known)):
        cure = did_you_mean(unknown[0], sorted(known), kind="steps")
        raise ConfigError(f"recipe {recipe.title!r} refers to {unknown[0]!r}, which is no step; {cure}")
    return named & steps.keys()


@dataclass(frozen=True)
class Reproduction(Record):
    """What a recipe came to. Its JSON is that of the report."""

    report: Path  # the page
    results: Path  # the same as JSON
    claims: list[JudgedClaim]
    steps: dict[str, Artefact]

    def to_json(self) -> dict[str, Any]:
        kept: dict[str, Any] = read_json(self.results)
        return kept

    @property
    def table(self) -> Table:
        return claims_table(self.claims)


@interrupts_say_it_is_kept()
def reproduce(
    name: str,
    *,
    scale: Scale,
    corpus: str | None = None,
    seeds: int | None = None,
    output: Path | None = None,
    store: ArtefactStore | None = None,
) -> Reproduction:
    """Make the recipe's report in the folder `output`, else under ENERGYLM_HOME/results; with several `seeds` (none: as
    many as the scale says) as often as that, and claims get intervals."""
    store = store or ArtefactStore()
    plan = plan_recipe(name, scale=scale, corpus=corpus, seeds=seeds, store=store)
    seeds = plan.seeds
    made = make_steps(plan.steps, store=store)
    runs = [_results_of(made, run) for run in range(1, seeds + 1)]
    results = mean_of_runs(runs)
    judged = [
        judge(claim.says, claim.holds_if, runs, published=claim.published, kind=claim.kind)
        for claim in plan.recipe.claims
    ]
    claims = gated(judged, [claim.says for claim in plan.recipe.claims if claim.gate])
    parts = [*name.split("/"), scale, plan.corpus, f"{seeds}-seeds" if seeds > 1 else ""]
    folder = output or home_folder() / "results" / "-".join(filter(None, parts))
    page = write_report(folder, title=_title(plan), sections=[*_sections(plan, results, claims), steps_section(made)])
    return Reproduction(page, page.parent / "results.json", claims, made)


def _results_of(made: Mapping[str, Artefact], run: int) -> dict[str, Any]:
    """What the steps of one run found, by their names in the recipe; steps without a seed were made in the first."""
    first = {name: artefact.result for name, artefact in made.items() if RUN not in name}
    sign = f"{RUN}{run}"
    return first | {name.removesuffix(sign): artefact.result for name, artefact in made.items() if name.endswith(sign)}


def _title(plan: RecipePlan) -> str:
    on = f", {plan.corpus}" if plan.corpus else ""
    return f"{plan.name}, scale {plan.scale}{on}{plan.runs}: {plan.recipe.title}"


def _sections(plan: RecipePlan, results: Mapping[str, Any], claims: Sequence[JudgedClaim]) -> list[Section]:
    on = f" --corpus {plan.corpus}" if plan.corpus else ""
    seeds = f" --seeds {plan.seeds}" if plan.seeds > 1 else ""
    command = f"energylm reproduce {plan.name} --scale {plan.scale}{on}{seeds}"
    means = f"\n\nNumbers are means of {plan.seeds} runs with seeds of their own." if plan.seeds > 1 else ""
    about = f"{plan.recipe.about.strip()}{means}\n\nMade by: {command}"
    shown = [section for config in plan.recipe.report for section in _section(config, results)]
    return [Text("What this is", about), Numbers("Claims", claims_table(claims)), *shown]


def _section(config: SectionConfig, results: Mapping[str, Any]) -> list[Section]:
    """Nothing where the section is about steps that this scale does not make; several parts for a grid."""
    convention = str(_value(config.convention, results) or "")
    if config.grid is not None:
        grid = _value(config.grid, results)
        return [] if grid is None else grid_sections(grid, title=config.title)
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
