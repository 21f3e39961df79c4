"""`energylm grid`: how far discrimination of real from machine text generalizes, in one command."""

from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import DryRun, JsonFile, Settings, load_config


def grid(
    config: Annotated[Path, typer.Argument(help="YAML file: corpora, generators, energies, training and test sets.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the report (not needed for --dry-run).")
    ] = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train energies on the text of some generators and corpora, judge them on that of others.

    The four settings are in-domain, cross-architecture, cross-corpus and unseen (neither corpus nor architecture).

    Each cell has balanced accuracy, AUROC and true-positive rates at 1 % and 5 % false positives with bootstrap
    intervals; heat maps and a report are written. Whatever cells share is made once and kept in ENERGYLM_HOME, so a
    second run reuses it and an interrupted one continues.

    Examples:

      energylm grid study.yaml --dry-run

      energylm grid study.yaml --output out/study --json study.json

      energylm grid study.yaml --output out/longer --set contexts.train=20000
    """
    from energylm.config.grid import GridConfig
    from energylm.errors import ConfigError

    chosen = load_config(GridConfig, config, settings=settings or ())
    if output is None and not dry_run:
        raise ConfigError("say where the report goes: --output FOLDER (or --dry-run to see what would be made)")

    from energylm.cli.options import write_result
    from energylm.pipelines.grid import plan_grid, run_grid

    if dry_run:
        typer.echo(plan_grid(chosen).describe())
        return
    run = run_grid(chosen, output=output)
    write_result(json, run)
    for record in run.found["records"]:
        where = f"{record['energy']} trained on {record['trained on']}, tested on {record['tested on']}"
        if record["accuracy"] is None:
            typer.echo(f"{where}: {record['setting']}: not judged ({record['note']})")
        else:
            typer.echo(
                f"{where}: {record['setting']}: accuracy {record['accuracy']:.3f} "
                f"[{record['lower']:.3f}, {record['upper']:.3f}], AUROC {record['AUROC']:.3f}"
            )
    typer.echo(run.report)
