"""`energylm pretrain mlm`: encoders trained on a corpus, for energies to start from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, write_result

app = typer.Typer(help="Pretrain an encoder on a corpus.", no_args_is_help=True)


@app.callback()
def _pretrain() -> None:
    """Pretrain an encoder on a corpus."""


@app.command("mlm")
def mlm(
    corpus: Annotated[
        str | None, typer.Argument(help="A corpus folder (`energylm corpus build`); may stand in --config instead.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the model is its subfolder model.")
    ] = ...,
    preset: Annotated[
        str | None,
        typer.Option(help="Shape: bit-tiny, bit-mini, bit-base, bit-large (default: bit-tiny).", show_default=False),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens of a window, the most it reads (default: 160).", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order, masking and dropout (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a masked language model, the start of a bidirectional energy (BiT).

    Killed runs go on where they stopped when run again; finished ones are not repeated. The folder OUTPUT/model is for
    `energylm energy train`, and for transformers' AutoModelForMaskedLM and AutoModel.

    Examples:

      energylm pretrain mlm corpora/sotu --output runs/mlm --preset bit-tiny --steps 1000

      energylm pretrain mlm corpora/news --output runs/bit --preset bit-base --set training.precision=bf16 --dry-run
    """
    from energylm.config import load_config
    from energylm.config.pretrain import PretrainMLMConfig

    flags = {
        "corpus": corpus,
        "preset": preset,
        "window": window,
        "training.steps": steps,
        "training.seed": seed,
    }
    chosen = load_config(PretrainMLMConfig, config, settings=settings or (), overrides=flags)

    from energylm.pipelines.pretrain_mlm import plan_mlm, pretrain_mlm

    if dry_run:
        typer.echo(plan_mlm(chosen, output=output).describe(chosen, output))
        return
    run = pretrain_mlm(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    write_result(json, run)
