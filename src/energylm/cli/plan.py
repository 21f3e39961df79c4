"""`energylm plan`: what a recipe or the demo will cost, before it is run."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import JsonFile


def plan(
    name: Annotated[
        str | None,
        typer.Argument(help="A recipe, e.g. deng2020/table1, a file of your own, or demo.", show_default=False),
    ] = None,
    scale: Annotated[str, typer.Option(help="Of a recipe: mini or paper.")] = "mini",
    corpus: Annotated[
        str | None,
        typer.Option(help="Which of the recipe's corpora (default: the first that is here).", show_default=False),
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(help="YAML file with the rates of a machine (default: measure this one).", show_default=False),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    processes: Annotated[int, typer.Option(help="Processes on each machine, each with the rates of --machine.")] = 1,
    text_gigabytes: Annotated[
        float | None, typer.Option(help="Text of data sets from the hub whose size is not known.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Count steps whose artefacts are there, too.")] = False,
    measure: Annotated[
        Path | None, typer.Option(help="Measure this machine, write its rates to this file, and leave.")
    ] = None,
    fit: Annotated[
        list[Path] | None,
        typer.Option(
            help="Fit the factors anew to kept results (results.json) of this machine, and leave; repeatable."
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Estimate FLOPs, memory, disk and time, step by step. Steps that are there already cost nothing.

    Rates of the machine are measured in a second or two; let nothing else run meanwhile. Training ends at its last step
    in a plan, though validation may end it earlier.

    Examples:

      energylm plan deng2020/table1

      energylm plan demo --json plan.json

      energylm plan --measure machine.yaml

      energylm plan deng2020/table1 --scale paper --machine gpu.yaml --nodes 8 --processes 8
    """
    import yaml

    from energylm.config.base import load_config
    from energylm.config.plan import MachineConfig, PlanConfig
    from energylm.config.recipe import load_recipe
    from energylm.errors import ConfigError
    from energylm.files import write_json, write_text

    if name is None and measure is None and not fit:
        raise ConfigError("name a recipe, e.g. energylm plan deng2020/table1, or demo; or say --measure FILE")
    given = None if machine is None else load_config(MachineConfig, machine)
    asked = None
    if name is not None:
        options = {"scale": scale, "corpus": corpus, "nodes": nodes, "processes": processes, "fresh": fresh}
        asked = PlanConfig.checked({"name": name, **options, "text_gigabytes": text_gigabytes}, origin="the plan")

    from energylm.pipelines.plan import DEMO, plan_cost
    from energylm.pipelines.plan_fit import fit_factors, save_factors
    from energylm.pipelines.plan_machine import measure_machine

    if measure is not None:
        found = measure_machine()
        write_text(measure, yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False))
        typer.echo(measure)
        return
    if asked is not None and asked.name != DEMO:
        load_recipe(asked.name)  # a misspelt name is told before anything is measured
    rates = given or measure_machine()
    if fit:
        fitted = fit_factors(fit, rates)
        save_factors(fitted)
        typer.echo(f"fitted to {len(fit)} results: estimated over measured {fitted['total_over_measured']:.2f}")
        return
    assert asked is not None
    planned = plan_cost(asked, rates)
    if json is not None:
        write_json(json, planned.to_json())

    from rich.console import Console

    from energylm.tables import to_rich

    Console().print(to_rich(planned.table, title=planned.title))
    for line in planned.summary():
        typer.echo(line)
