"""`energylm pretrain cmlm`: a conditional masked language model, trained on parallel text."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result


def cmlm(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the model is its subfolder model.")
    ] = ...,
    train_files: Annotated[
        list[str] | None,
        typer.Option("--train", help="Parallel text: the source, then the target file. Required, here or in --config."),
    ] = None,
    valid_files: Annotated[
        list[str] | None, typer.Option("--valid", help="The same for validation. Required, here or in --config.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order, masks and dropout (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a conditional masked language model: a translator that fills in hidden tokens, given the source.

    OUTPUT/model translates by Mask-Predict, and is an energy of translations, both by `energylm mcmc --source`.
    Killed runs go on where they stopped when run again; finished ones are not repeated.

    Examples:

      energylm pretrain cmlm --train train.de --train train.en --valid val.de --valid val.en --output runs/cmlm

      energylm pretrain cmlm --config cmlm.yaml -o runs/wide --set network.width=256 --steps 20000 --dry-run
    """
    from energylm.config.pretrain_cmlm import PretrainCMLMConfig

    flags = {
        "train": train_files or None,
        "valid": valid_files or None,
        "training.steps": steps,
        "training.seed": seed,
    }
    chosen = load_config(PretrainCMLMConfig, config, settings=settings or (), overrides=flags)

    from energylm.pipelines.pretrain_cmlm import plan_cmlm, pretrain_cmlm

    if dry_run:
        typer.echo(plan_cmlm(chosen, output=output).describe(chosen, output))
        return
    run = pretrain_cmlm(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    write_result(json, run)
