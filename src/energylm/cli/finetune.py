"""`energylm finetune`: an encoder on a task of GLUE or SQuAD, trained and judged in one command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result


def finetune(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")],
    task: Annotated[
        str | None,
        typer.Option(
            help="cola, sst2, mrpc, sts, qqp, mnli, qnli, rte, squad1 or squad2. Required, here or in --config.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The folder with the task's published files (GLUE's layout or the authors').")
    ] = None,
    train: Annotated[
        list[str] | None, typer.Option(help="A training file, in place of the folder's; repeatable.")
    ] = None,
    evaluation: Annotated[
        list[str] | None, typer.Option(help="An evaluation file, in place of the folder's; repeatable.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="The encoder: a model folder, a known model, a hub name (default: minilm-l6)."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds (default: 3).", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed (default: 0).", show_default=False)] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the examples (default: 10 for rte, sts; 2 for squad; 3).", show_default=False),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest learning rate (default: 1e-4).", show_default=False)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per update (default: 32).", show_default=False)] = None,
    pooling: Annotated[
        str | None, typer.Option(help="first or mean (default: first where there is a [CLS]).", show_default=False)
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(help="written, or spoken: upper-case words only (default: written).", show_default=False),
    ] = None,
    train_examples: Annotated[
        int | None, typer.Option(help="Train on this many, at random (default: all).", show_default=False)
    ] = None,
    evaluation_examples: Annotated[
        int | None, typer.Option(help="Judge this many, at random (default: all).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune an encoder with every seed, judge it, and print the median of the task's metric with its spread.

    CoLA by Matthews correlation, STS by Spearman, SQuAD by exact match and F1, all others by accuracy. Each layer
    learns at 0.8 times the rate of the one above it. Killed runs go on where they stopped when run again.

    Examples:

      energylm finetune --task cola --data glue --init minilm-l6 --seeds 3 -o runs/cola

      energylm finetune --task rte --data glue --init runs/electric/model --pooling mean -o runs/rte-electric

      energylm finetune --task squad2 --data squad --init bert-base-uncased -o runs/squad2 --dry-run

      energylm finetune --task mrpc --train train.jsonl --evaluation dev.jsonl --set training.micro_batch=8 -o runs/mrpc
    """
    from energylm.config.finetune import FinetuneConfig

    flags = {
        "task": task,
        "data": data,
        "train": train,
        "evaluation": evaluation,
        "init": init,
        "seeds": seeds,
        "epochs": epochs,
        "pooling": pooling,
        "style": style,
        "train_examples": train_examples,
        "evaluation_examples": evaluation_examples,
        "training.seed": seed,
        "training.global_batch": batch,
        "training.optimizer.learning_rate": learning_rate,
    }
    chosen = load_config(FinetuneConfig, config, settings=settings or (), overrides=flags)

    from energylm.pipelines.finetune import finetune as run_finetuning
    from energylm.pipelines.finetune import plan_finetune

    if dry_run:
        typer.echo(plan_finetune(chosen, output=output))
        return
    run = run_finetuning(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks

    from energylm.progress import say
    from energylm.tables import to_markdown

    typer.echo(to_markdown(run.table), nl=False)
    say(run.summary())
    write_result(json, run)
