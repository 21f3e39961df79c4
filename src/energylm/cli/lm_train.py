"""`energylm lm train`: a language model from a corpus."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result


def train(
    corpus: Annotated[
        str | None, typer.Argument(help="A corpus folder (`energylm corpus build`). Required, here or in --config.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the model is its subfolder model.")
    ] = ...,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Shape: tiny, mini, small, big, huge, conv, conv-tiny … (default: tiny).", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="lm; ralm, the product of a frozen --base and a network of this shape; balm, one network as large as "
            "both together (default: lm).",
            show_default=False,
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(help="The base model (folder or name) of a ralm or balm.")] = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Start from this model (folder or name) instead of random weights.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="left-to-right or right-to-left (default: left-to-right).", show_default=False),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens of a training window (default: 160).", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order and dropout (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a language model. Killed runs go on where they stopped when run again; finished ones are not repeated.

    The published settings are presets of the training: --set training.preset=deng2020/base-lm. Several processes:
    torchrun --nproc_per_node 2 -m energylm lm train …

    Examples:

      energylm lm train corpora/sotu --output runs/tiny --preset tiny --steps 1000

      energylm lm train corpora/news --output runs/r2l --direction right-to-left --set training.micro_batch=8

      energylm lm train corpora/news --output runs/ralm --kind ralm --base runs/tiny/model --preset tiny

      energylm lm train corpora/books --output runs/base --preset big --set training.preset=deng2020/base-lm --dry-run
    """
    from energylm.config.train_lm import TrainLMConfig

    flags = {
        "corpus": corpus,
        "kind": kind,
        "base": base,
        "preset": preset,
        "pretrained": pretrained,
        "direction": direction,
        "window": window,
        "training.steps": steps,
        "training.seed": seed,
    }
    chosen = load_config(
        TrainLMConfig, config, settings=settings or (), overrides=flags, positions={"corpus": "CORPUS"}
    )

    from energylm.pipelines.train_lm import plan_lm, train_lm

    if dry_run:
        typer.echo(plan_lm(chosen, output=output).describe(chosen, output))
        return
    run = train_lm(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    perplexity = run.best_perplexity.summary() if run.best_perplexity else "not validated"
    typer.echo(f"{run.model}: {perplexity}; step {run.best_step:,} of {run.steps:,}")
    write_result(json, run)
