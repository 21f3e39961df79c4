"""What a recipe will make: the steps that its report and claims refer to, on the corpora that are here, in order.

Nothing is made. Grids are taken apart into the steps they are made of, and what is said of corpora that were not chosen
falls away.

Relations  `recipe` is the file; `steps` gives each step its key; `reproducing` makes them; `plan_cost` counts them.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from energylm.errors import ConfigError
from energylm.jobs.artefacts import ArtefactStore
from energylm.verbs.recipes.claims import check_predicate, paths
from energylm.verbs.recipes.grid import Grid
from energylm.verbs.recipes.grid_steps import expand_grid
from energylm.verbs.recipes.recipe import (
    GRID,
    PRODUCT,
    VALUE,
    Recipe,
    Scale,
    StepConfig,
    first_made,
    load_recipe,
    members_of,
    references,
)
from energylm.verbs.recipes.recipe_corpora import CORPUS, choose_corpus, corpus_steps
from energylm.verbs.recipes.steps import PlannedStep, describe_steps, plan_steps


@dataclass(frozen=True)
class RecipePlan:
    name: str
    scale: Scale
    corpus: str
    recipe: Recipe
    steps: list[PlannedStep]

    @property
    def title(self) -> str:
        on = f" on {self.corpus}" if self.corpus else ""
        return f"{self.name} at scale {self.scale}{on}"

    def describe(self) -> str:
        lines = [f"{self.title}: {self.recipe.title} ({self.recipe.where})", *describe_steps(self.steps)]
        minutes = self.recipe.scales[self.scale].minutes
        left = sum(not step.finished for step in self.steps)
        return "\n".join([*lines, f"{left} of {len(self.steps)} steps to make" + _cost(minutes)])


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
        for any_scale, settings in recipe.scales.items()
        for other in settings.corpora
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


def _cost(minutes: float | None) -> str:
    return f"; all of them take about {minutes:g} minutes on 2 CPU cores" if minutes else ""
