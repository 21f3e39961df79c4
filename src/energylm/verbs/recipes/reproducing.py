"""Run a recipe: make what it needs (or find it in the artefact store), judge its claims, write its report.

Only the steps that the report and the claims refer to are made, and those they are made from, in order. Every step is a
verb that a user can call; the store decides whether it has been called before.

Relations  `recipe_plan` says which steps; `steps` makes them; `claims` judges; `reproduce` is the verb.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from energylm.verbs.recipes.claims import JudgedClaim, claims_table, judge, look_up
from energylm.verbs.recipes.recipe import VALUE, Scale, SectionConfig, references
from energylm.verbs.recipes.recipe_plan import RecipePlan, plan_recipe
from energylm.verbs.recipes.steps import make_steps, steps_section


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
    output: Path | None = None,
    store: ArtefactStore | None = None,
) -> Reproduction:
    """Make the recipe's report in the folder `output` , else under ENERGYLM_HOME/results."""
    store = store or ArtefactStore()
    plan = plan_recipe(name, scale=scale, corpus=corpus, store=store)
    made = make_steps(plan.steps, store=store)
    results = {step: artefact.result for step, artefact in made.items()}
    claims = [judge(claim.says, claim.holds_if, results, published=claim.published) for claim in plan.recipe.claims]
    folder = output or home_folder() / "results" / "-".join(filter(None, [*name.split("/"), scale, plan.corpus]))
    page = write_report(folder, title=_title(plan), sections=[*_sections(plan, results, claims), steps_section(made)])
    return Reproduction(page, page.parent / "results.json", claims, made)


def _title(plan: RecipePlan) -> str:
    on = f", {plan.corpus}" if plan.corpus else ""
    return f"{plan.name}, scale {plan.scale}{on}: {plan.recipe.title}"


def _sections(plan: RecipePlan, results: Mapping[str, Any], claims: Sequence[JudgedClaim]) -> list[Section]:
    on = f" --corpus {plan.corpus}" if plan.corpus else ""
    command = f"energylm reproduce {plan.name} --scale {plan.scale}{on}"
    about = f"{plan.recipe.about.strip()}\n\nMade by: {command}"
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
