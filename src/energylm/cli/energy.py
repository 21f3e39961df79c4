"""`energylm energy train`: an energy from negatives."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

app = typer.Typer(help="Train an energy to tell real from generated text.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `train` a subcommand, though it is the only one."""


@app.command("train")
def train(
    negatives: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders made by `energylm negatives`, to learn from all of them. Required, here or in --config."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the energy is its subfolder model.")
    ] = ...,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="The corpus folder that the negatives were made from: once for all, or once for each. Required, here "
            "or in --config."
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Start: a model folder, minilm-l6, a hub name, or a shape with random weights (bit-tiny, bilstm-tiny, "
            "linear). Required, here or in --config."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="unit (causal), bit (bidirectional), bilstm or linear: checks that --init is what was meant."
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean over all tokens, or the first position of a bit energy (default: mean).", show_default=False
        ),
    ] = None,
    reads: Annotated[
        str | None,
        typer.Option(
            help="tokens, or text for an encoder with its own tokenizer (default: tokens).", show_default=False
        ),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            help="Negatives of another split to validate on, once or several times; none = hold contexts out."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="The loss: nce, most-offending or ranking (default: nce).", show_default=False),
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Of the ranking loss (default: 1).", show_default=False)] = None,
    negatives_per_context: Annotated[
        int | None,
        typer.Option(
            "--negatives-per-context",
            "-k",
            help="Negatives of each context in a batch (default: 1).",
            show_default=False,
        ),
    ] = None,
    lm: Annotated[str | None, typer.Option(help="Refuse negatives that this model did not write.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Published training settings, e.g. deng2020/joint-bit-base.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Contexts per update (default: 32).", show_default=False)] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest learning rate (default: 1e-4).", show_default=False)
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many validations without a lower loss; none = go on.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order and dropout (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train an energy to tell a corpus from a language model's continuations of it, then calibrate and report it.

    The weights with the lowest validation loss are kept. Killed runs go on where they stopped when run again; finished
    ones are not repeated. Several processes: torchrun --nproc_per_node 2 -m energylm energy train …

    Examples:

      energylm energy train negatives/sotu --corpus corpora/sotu --init runs/tiny/model --output runs/unit

      energylm energy train negatives/sotu --corpus corpora/sotu --init minilm-l6 --reads text --output runs/minilm

      energylm energy train negatives/sotu --corpus corpora/sotu --init bit-base --preset deng2020/joint-bit-base -o bit

      energylm energy train negatives/books negatives/news --corpus corpora/books --corpus corpora/news \\
      --init bilstm-tiny --objective most-offending -k 8 --output runs/union
    """
    from energylm.config.train_energy import TrainEnergyConfig

    flags = {
        "negatives": negatives or None,
        "corpus": corpus or None,
        "init": init,
        "kind": kind,
        "pooling": pooling,
        "reads": reads,
        "validation": validation or None,
        "objective": objective,
        "margin": margin,
        "negatives_per_context": negatives_per_context,
        "lm": lm,
        "training.preset": preset,
        "training.steps": steps,
        "training.global_batch": batch,
        "training.optimizer.learning_rate": learning_rate,
        "training.validation.patience_evaluations": patience,
        "training.seed": seed,
    }
    chosen = load_config(
        TrainEnergyConfig, config, settings=settings or (), overrides=flags, positions={"negatives": "NEGATIVES"}
    )

    from energylm.pipelines.train_energy import plan_energy, train_energy

    if dry_run:
        typer.echo(plan_energy(chosen, output=output).describe(chosen, output))
        return
    run = train_energy(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(
        f"{run.model}: accuracy {run.accuracy:.1%}, P@1 {run.precision_at_1:.1%}, "
        f"loss {run.loss_after_calibration:.4f} ({run.loss_before_calibration:.4f} before calibration, 1.3863 at "
        f"chance) on {run.contexts:,} held-out contexts; scale {run.scale:.3g}, "
        f"shift {run.shift:.3g}; step {run.best_step:,} of {run.steps:,}; {run.report}"
    )
    write_result(json, run)
