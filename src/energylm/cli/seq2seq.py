"""`energylm seq2seq train / decode / evaluate`: taggers and translators, trained for the search that decodes them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from energylm.cli.options import ConfigFile, DryRun, JsonFile, Settings, load_config, write_result

app = typer.Typer(help="Train taggers and translators for the search that decodes them.", no_args_is_help=True)

Method = Annotated[
    str | None, typer.Option("--decode", help="greedy, beam or soft-beam (default: beam).", show_default=False)
]
BeamWidth = Annotated[int | None, typer.Option("--beam", help="Elements of the beam (default: 3).", show_default=False)]
Normalization = Annotated[
    str | None,
    typer.Option(help="local: log-softmaxed scores; global: raw ones (default: local).", show_default=False),
]
Model = Annotated[
    str | None, typer.Argument(help="The model folder of a run, e.g. runs/ner/model. Required, here or in --config.")
]


@app.command("train")
def train(
    task: Annotated[
        str | None,
        typer.Argument(help="entities (CoNLL-2003), tags (CoNLL-U) or translation. Required, here or in --config."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run folder; the model is its subfolder model.")
    ] = ...,
    train_files: Annotated[
        list[str] | None,
        typer.Option(
            "--train", help="Training file; to translate: source, then target file. Required, here or in --config."
        ),
    ] = None,
    valid_files: Annotated[
        list[str] | None, typer.Option("--valid", help="The same for validation. Required, here or in --config.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="cross-entropy, scheduled-sampling, direct-loss or hinge (default: cross-entropy).",
            show_default=False,
        ),
    ] = None,
    init: Annotated[str | None, typer.Option(help="Start from this trained model folder.")] = None,
    normalization: Normalization = None,
    beam: Annotated[
        int | None, typer.Option(help="Elements of the soft beam in training (default: 3).", show_default=False)
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="α of the first epoch (default: 1).", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(help="Updates (default: 1000).", show_default=False)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order, coins and noise (default: 0).", show_default=False)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Train a tagger or translator. Killed runs go on where they stopped; finished ones are not repeated.

    Search-aware objectives (direct-loss, hinge) start from a model trained by cross-entropy; a globally normalized one
    from a self-normalized model (--set objective.self_normalization=0.1). α grows by --set objective.alpha.growth=1.5.

    Examples:

      energylm seq2seq train entities --train eng.train --valid eng.testa --output runs/ner --steps 2000

      energylm seq2seq train entities --train eng.train --valid eng.testa --output runs/direct --init runs/ner/model
      --objective direct-loss --set objective.cost=doubled-outside --set objective.alpha.growth=1.5

      energylm seq2seq train translation --train train.de --train train.en --valid val.de --valid val.en
      --output runs/mt --set network.hidden=256 --set network.embedding=256 --dry-run
    """
    from energylm.config.seq2seq import TrainSeq2SeqConfig

    flags = {
        "task": task,
        "train": train_files or None,
        "valid": valid_files or None,
        "init": init,
        "objective.kind": objective,
        "objective.normalization": normalization,
        "objective.beam": beam,
        "objective.alpha.start": alpha,
        "training.steps": steps,
        "training.seed": seed,
    }
    chosen = load_config(
        TrainSeq2SeqConfig, config, settings=settings or (), overrides=flags, positions={"task": "TASK"}
    )

    from energylm.pipelines.seq2seq_train import plan_seq2seq, train_seq2seq

    if dry_run:
        typer.echo(plan_seq2seq(chosen, output=output).describe(chosen, output))
        return
    run = train_seq2seq(chosen, output=output)
    if os.environ.get("RANK", "0") != "0":
        return  # started by torchrun: one process speaks
    typer.echo(f"{run.model}: {run.summary()}")
    write_result(json, run)


@app.command("decode")
def decode(
    model: Model = None,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|-",
            help="A sentence a line, a tagger's words apart; - is standard input (default: -).",
            show_default=False,
        ),
    ] = None,
    method: Method = None,
    beam: BeamWidth = None,
    alpha: Annotated[float | None, typer.Option(help="α of a soft beam (default: 1).", show_default=False)] = None,
    normalization: Normalization = None,
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Print the tags or the translation of every line, in order.

    Examples:

      echo "Ada Lovelace was born in London ." | energylm seq2seq decode runs/ner/model -

      energylm seq2seq decode runs/mt/model test.de --decode beam --beam 5 --set decoding.length_exponent=1 > test.out
    """
    from energylm.config.seq2seq import DecodeSeq2SeqConfig

    flags = {"model": model, "source": source, **_decoding(method, beam, alpha, normalization)}
    chosen = load_config(
        DecodeSeq2SeqConfig,
        config,
        settings=settings or (),
        overrides=flags,
        positions={"model": "MODEL", "source": "FILE"},
    )

    from energylm.pipelines.seq2seq_decode import decode_seq2seq, plan_decode

    if dry_run:
        typer.echo(plan_decode(chosen))
        return
    for line in decode_seq2seq(chosen):
        typer.echo(line)


@app.command("evaluate")
def evaluate(
    model: Model = None,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="The labelled file of the model's task; to translate: source, target. Required, here or in --config."
        ),
    ] = None,
    method: Method = None,
    beam: BeamWidth = None,
    alpha: Annotated[float | None, typer.Option(help="α of a soft beam (default: 1).", show_default=False)] = None,
    normalization: Normalization = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write results.json, results.md and report.html there.")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: JsonFile = None,
    dry_run: DryRun = False,
) -> None:
    """Decode labelled data and judge it: F1 by seqeval, accuracy, or BLEU by sacrebleu; and the spread of log Z.

    Examples:

      energylm seq2seq evaluate runs/ner/model eng.testb --decode greedy

      energylm seq2seq evaluate runs/mt/model test.de test.en --beam 5 --normalization global --json bleu.json
    """
    from energylm.config.seq2seq import EvaluateSeq2SeqConfig

    flags = {"model": model, "data": data or None, **_decoding(method, beam, alpha, normalization)}
    chosen = load_config(
        EvaluateSeq2SeqConfig,
        config,
        settings=settings or (),
        overrides=flags,
        positions={"model": "MODEL", "data": "FILE"},
    )

    from energylm.pipelines.seq2seq_evaluate import evaluate_seq2seq, plan_evaluation
    from energylm.tables import to_rich

    if dry_run:
        typer.echo(plan_evaluation(chosen))
        return
    result = evaluate_seq2seq(chosen, output=output)
    from rich.console import Console

    for title, table in result.tables().items():
        Console().print(to_rich(table, title=title))
    write_result(json, result)


def _decoding(
    method: str | None, beam: int | None, alpha: float | None, normalization: str | None
) -> dict[str, str | int | float | None]:
    return {
        "decoding.method": method,
        "decoding.beam": beam,
        "decoding.alpha": alpha,
        "decoding.normalization": normalization,
    }
