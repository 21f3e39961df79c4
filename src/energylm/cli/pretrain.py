"""`energylm pretrain mlm`: encoders trained on a corpus, for energies to start from."""

import os
from pathlib import Path
from typing import Annotated

import typer

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
    config: Annotated[Path | None, typer.Option(help="YAML file with a PretrainMLMConfig.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any key, e.g. masking.rate=0.3 or training.micro_batch=8; repeatable."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the inputs and print what would be done; write nothing.")
    ] = False,
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

    from energylm.files import write_json
    from energylm.pipelines.pretrain_mlm import plan_mlm, pretrain_mlm

    if dry_run:
        typer.echo(plan_mlm(chosen, output=output).describe(chosen, output))
        return
    run = pretrain_mlm(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    if json is not None:
        write_json(json, run.to_json())
