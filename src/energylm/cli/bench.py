"""`energylm bench NAME`: measure against peers and limits in one run; exit 1 where a bar does not hold."""

from importlib import import_module
from typing import Annotated

import typer

from energylm.cli.options import JsonFile
from energylm.errors import ConfigError


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; `list` names them all.")],
    json: JsonFile = None,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats per contender; medians are reported.", min=1)] = 5,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, to see that it runs; its bars mean nothing.")] = False,
) -> None:
    """Measure energylm against peers and the machine's limit.

    Contenders take turns within one run and medians are compared. Leaves with exit code 1 where a bar does not hold.

    Examples:

      energylm bench list

      energylm bench shared-prefix --json shared-prefix.json
    """
    from energylm.benchmarks import BENCHMARKS

    if name == "list":
        typer.echo("\n".join(BENCHMARKS))
        return
    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    from rich.console import Console
    from rich.table import Table

    from energylm.benchmarks.harness import Options

    result = import_module(BENCHMARKS[name]).run(Options(repeats=repeats, quick=quick))
    table = Table("what", "measured", "bar", "holds", title=f"bench {result.name}")
    for bar in result.bars:
        sign = "≥" if bar.at_least else "≤"
        table.add_row(bar.what, f"{bar.measured:.3g}", f"{sign} {bar.bar:g}", "yes" if bar.holds else "NO")
    for what, value in result.details.items():
        table.add_row(what, f"{value:.4g}" if isinstance(value, float) else str(value), "", "", style="dim")
    Console().print(table)
    if json is not None:
        result.save(json)
    if not result.holds:
        raise typer.Exit(1)
