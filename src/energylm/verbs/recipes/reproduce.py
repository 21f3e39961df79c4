"""`energylm reproduce`: a table or figure of a paper, made here, with its claims judged."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import Table
from energylm.verbs.recipes.recipe import Scale, load_recipe, recipe_names
from energylm.verbs.verb import Flag, Positional, Verb


@dataclass(frozen=True)
class RecipeList(Record):
    """All recipes of the package."""

    recipes: dict[str, str]  # by name: where it stands in its paper, and its title

    @property
    def table(self) -> Table:
        return Table(["recipe", "what it is"], [list(pair) for pair in self.recipes.items()])


class Reproduce(Verb):
    """Reproduce a table or figure. What other recipes have made is reused; an interrupted run continues.

    Each claim is printed as holds, does not hold or, within its interval, too close to call, beside what was published.
    A claim that does not hold is a result, not an error. The report goes to --output, else to a folder under
    ENERGYLM_HOME/results.
    """

    examples = (
        "energylm reproduce --list",
        "energylm reproduce deng2020/table1 --scale mini --dry-run",
        "energylm reproduce deng2020/fig1 --corpus sotu --output out/fig1",
        "energylm reproduce goyal2021/table3_1 --scale desk --seeds 3",
    )
    writes = "optional"

    recipe: Annotated[str | None, Positional("RECIPE")] = Field(
        None, description="A recipe, e.g. deng2020/table1 (--list shows all), or a YAML file of your own."
    )
    scale: Scale = Field(
        "mini", description="mini: minutes on 2 CPU cores; desk: hours; paper: the published sizes, for a cluster."
    )
    seeds: int | None = Field(
        None,
        ge=1,
        description="Runs with seeds of their own; from two on every claim has an interval over them. None = as many "
        "as the recipe's scale says.",
    )
    corpus: str | None = Field(
        None, description="Which of the recipe's corpora; without it the first whose data are here."
    )
    list_recipes: Annotated[bool, Flag("--list")] = Field(False, description="Print all recipes and leave.")

    @model_validator(mode="after")
    def _names_a_recipe(self) -> Self:
        if self.recipe is None and not self.list_recipes:
            raise ValueError("name a recipe, e.g. energylm reproduce deng2020/table1; --list shows all")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        if self.recipe is None or self.list_recipes:
            return f"would list {len(recipe_names())} recipes"
        from energylm.verbs.recipes.reproducing import plan_recipe

        return plan_recipe(self.recipe, scale=self.scale, corpus=self.corpus, seeds=self.seeds).describe()

    def run(self, job: Job = DEFAULT_JOB) -> Record:
        if self.recipe is None or self.list_recipes:
            recipes = {name: load_recipe(name) for name in recipe_names()}
            return RecipeList({name: f"{recipe.where}: {recipe.title}" for name, recipe in recipes.items()})
        from energylm.verbs.recipes.reproducing import reproduce

        return reproduce(self.recipe, scale=self.scale, corpus=self.corpus, seeds=self.seeds, output=job.output)

    def shown(self, result: Any) -> str:
        if isinstance(result, RecipeList):
            return "".join(f"{name:24} {told}\n" for name, told in result.recipes.items())
        lines = []
        for claim in result.claims:
            published = f" (published: {claim.published})" if claim.published else ""
            by = f" by {claim.difference.told}" if claim.difference is not None else ""
            lines.append(f"{claim.verdict}{by}: {claim.says}: {claim.numbers}{published}")
        return "\n".join([*lines, str(result.report), ""])

    def remarks(self, result: Any) -> list[str]:
        return []
