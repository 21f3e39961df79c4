"""`energylm reproduce`: a table or figure of a paper, made here, with its claims judged."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import DryRun, JsonFile


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, e.g. deng2020/table1 (--list shows all), or a file of your own.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="mini: minutes on 2 CPU cores; paper: the published sizes, for a cluster.")
    ] = "mini",
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Which of the recipe's corpora (default: the first whose data are here).", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the report (default: under ENERGYLM_HOME/results)."),
    ] = None,
    json: JsonFile = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="Print all recipes and leave.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure. What other recipes have made is reused; an interrupted run continues.

    Each claim is printed as holds or does not hold, beside what was published. A claim that does not hold is a result,
    not an error.

    Examples:

      energylm reproduce --list

      energylm reproduce deng2020/table1 --scale mini --dry-run

      energylm reproduce deng2020/fig1 --corpus sotu --output out/fig1
    """
    from energylm.config.recipe import SCALES, load_recipe, recipe_names
    from energylm.errors import ConfigError

    if list_recipes:
        for known in recipe_names():
            recipe = load_recipe(known)
            typer.echo(f"{known:24} {recipe.where}: {recipe.title}")
        return
    if name is None:
        raise ConfigError("name a recipe, e.g. energylm reproduce deng2020/table1; --list shows all")
    if scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}; it is one of {', '.join(SCALES)}")

    from energylm.files import read_json, write_json
    from energylm.pipelines.reproduce import plan_recipe
    from energylm.pipelines.reproduce import reproduce as run_recipe

    if dry_run:
        typer.echo(plan_recipe(name, scale=scale, corpus=corpus).describe())
        return
    done = run_recipe(name, scale=scale, corpus=corpus, output=output)
    if json is not None:
        write_json(json, read_json(done.results))
    for claim in done.claims:
        published = f" (published: {claim.published})" if claim.published else ""
        typer.echo(f"{claim.verdict}: {claim.says}: {claim.found}{published}")
    typer.echo(done.report)
